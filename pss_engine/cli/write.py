"""``pss write``: histories in, states in the store out."""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import (
    GateOptions,
    Json,
    ModelOptions,
    StoreOptions,
    WriterOptions,
)
from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.state import SessionState, StateStore
    from pss_engine.writer import History, SessionTargets

_MODEL, _WRITER, _GATE, _STORE = ModelOptions(), WriterOptions(), GateOptions(), StoreOptions()


def write(
    session: str | None = None,
    history: Path | None = None,
    /,
    *,
    batch: Annotated[
        Path | None, Parameter(help="Write many sessions: a .jsonl file, a session a line.", show_default=False)
    ] = None,
    go_on: Annotated[
        bool,
        Parameter(
            name="--continue", help="The history is new turns of a session that has a state.", show_default=False
        ),
    ] = False,
    show_targets: Annotated[
        bool, Parameter(help="Only show the targets, as the first line of a history file.", show_default=False)
    ] = False,
    clue: Annotated[
        str,
        Parameter(
            help="What the state learns to say; default: from the history file or its words.", show_default=False
        ),
    ] = "",
    negative_clue: Annotated[
        str, Parameter(help="An archived or conflicting clue, which it must not say.", show_default=False)
    ] = "",
    store: StoreOptions = _STORE,
    writer: WriterOptions = _WRITER,
    gate: GateOptions = _GATE,
    model: ModelOptions = _MODEL,
    as_json: Json = False,
) -> int:
    """Compile a session's history into a state and store it.

    What is stored already from the same history, targets and settings is not written again.

    Parameters
    ----------
    session
        Id of the session: a-z 0-9 . _ - only; default: the name of the history file.
    history
        A .jsonl file of chat turns (role, content), or plain text.
    """
    from pss_engine.cli.runtime import open_store, writer_config

    states = open_store(store)
    config = writer_config(writer)
    if batch is not None:
        from pss_engine.cli.write_batch import write_batch

        if session or history or clue or negative_clue or go_on or show_targets:
            raise ConfigError("--batch takes sessions, histories and targets from its file; give no others")
        return write_batch(batch, states, config, gate, model, as_json)
    session, turns = _read(session, history)
    targets = _given(clue, negative_clue)
    if show_targets:
        _show_targets(turns, targets, model.model, as_json)
    else:
        _write_one(session, turns, targets, go_on, states, config, gate, model, as_json)
    return 0


def _read(session: str | None, history: Path | None) -> tuple[str, History]:
    """The session's id and its history; a single argument is the history, whose name becomes the id."""
    from pss_engine.state.files import check_session_id
    from pss_engine.writer import History

    if session is None:
        raise ConfigError("a history is needed, or --batch with a file of them")
    if history is None:
        history = Path(session)
        session = re.sub(r"[^a-z0-9._-]+", "-", history.stem.lower()).lstrip("._-")
    check_session_id(session)
    return session, History.load(history)


def _given(clue: str, negative_clue: str) -> SessionTargets | None:
    from pss_engine.writer import SessionTargets

    if clue:
        return SessionTargets(clue, negative_clue)
    if negative_clue:
        raise ConfigError("--negative-clue needs --clue; give both, or none to take them from the history")
    return None


def _show_targets(history: History, given: SessionTargets | None, model: str, as_json: bool) -> None:
    import json

    from pss_engine.cli.output import emit_json, note
    from pss_engine.models.loader import load_tokenizer
    from pss_engine.writer import find_targets

    tokenizer = load_tokenizer(model)
    targets, source = find_targets(history, given, lambda text: len(tokenizer.encode(text)))
    if as_json:
        emit_json({**targets.to_dict(), "source": source})
    else:
        print(json.dumps(targets.to_dict(), ensure_ascii=False))
        note(f"from the {source}; edit it and put it first in the history's .jsonl file")


def _write_one(
    session: str,
    turns: History,
    targets: SessionTargets | None,
    go_on: bool,
    states: StateStore,
    config: Any,
    gate: GateOptions,
    model: ModelOptions,
    as_json: bool,
) -> None:
    from pss_engine.cli.output import emit_json, on_interrupt
    from pss_engine.cli.progress import writing
    from pss_engine.cli.runtime import open_engine, open_model, readout_gate
    from pss_engine.session import SessionRAG
    from pss_engine.writer import Writer

    before = _digest(states, session)
    if go_on:
        states.head(session)  # says which sessions there are, before a model is loaded
    with on_interrupt(lambda: _kept(states, session, before)):
        base = open_model(model)
        rag = SessionRAG(open_engine(model, base, [config.rank]), None, states)
        work: Any = rag.go_on if go_on else partial(rag.write, ask_base=gate.ask_base)
        start = time.monotonic()
        with writing(session) as progress:
            state = work(
                session,
                turns,
                targets,
                writer=Writer(base, config, gate.writer_memory_bytes),
                progress=progress,
                gate=readout_gate(gate),
            )
        seconds, folder = time.monotonic() - start, states.path(session)
        if as_json:
            document = {**state.describe(), "path": str(folder), "targets_from": state.meta.targets["source"]}
            emit_json({**document, "new": state.digest != before, "seconds": seconds})
        else:
            _show(state, folder, state.digest != before, seconds)


def _digest(store: StateStore, session: str) -> str:
    return store.head(session) if session in store else ""


def _kept(store: StateStore, session: str, before: str) -> str:
    now = _digest(store, session)
    if now != before:
        return f"the new state of session {session} is stored ({now[:12]})"
    return f"session {session} keeps the state it had ({now[:12]})" if now else f"session {session} still has no state"


def _show(state: SessionState, folder: Path, new: bool, seconds: float) -> None:
    from pss_engine.cli.output import console, facts, mib

    meta = state.meta
    rows: list[tuple[str, Any]] = [
        ("session", state.session_id),
        ("digest", state.digest[:16] + ("" if new else " (was stored already: nothing written)")),
        ("size", f"{mib(state.num_bytes)}, rank {state.max_rank}, layers {state.layers[0]}-{state.layers[-1]}"),
        ("history", f"{meta.num_history_tokens} tokens"),
        ("clue", f"{meta.clue} (from the {meta.targets['source']})"),
    ]
    if meta.negative_clue:
        rows.append(("not", meta.negative_clue))
    rows.append(("readout", meta.readout))
    if meta.readout_check:
        rows.append(("check", verdict(meta.readout_check)))
    rows += [("seconds", f"{seconds:.1f}"), ("path", folder)]
    console().print(facts(rows))


def verdict(check: Any) -> str:
    """What the readout's gate found, in a line."""
    text = f"{'passed' if check['passed'] else 'FLAGGED'}, {check['recall']:.0%} of the clue's terms"
    if check["missed"]:
        text += f", not {', '.join(check['missed'])}"
    return text + (f", {check['attempts']} rounds" if check["attempts"] > 1 else "")
