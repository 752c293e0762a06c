"""``pss write``: a history in, a state in the store out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import DEFAULT_STORE, Json, ModelOptions, StoreFolder, WriterOptions
from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.state import SessionState, StateStore
    from pss_engine.writer import History, SessionTargets

_DEFAULT_MODEL_OPTIONS, _DEFAULT_WRITER_OPTIONS = ModelOptions(), WriterOptions()


def write(
    session: str,
    history: Path,
    /,
    *,
    clue: Annotated[
        str,
        Parameter(
            help="What the state learns to say; default: from the history file or its words.", show_default=False
        ),
    ] = "",
    negative_clue: Annotated[
        str, Parameter(help="An archived or conflicting clue, which it must not say.", show_default=False)
    ] = "",
    store: StoreFolder = DEFAULT_STORE,
    writer: WriterOptions = _DEFAULT_WRITER_OPTIONS,
    model: ModelOptions = _DEFAULT_MODEL_OPTIONS,
    as_json: Json = False,
) -> None:
    """Compile a session's history into a state and store it.

    Parameters
    ----------
    session
        Id of the session: a-z 0-9 . _ - only. A later state replaces an earlier one.
    history
        A .jsonl file of chat turns (role, content), or plain text.
    """
    from pss_engine.cli.output import emit_json, on_interrupt
    from pss_engine.cli.progress import writing
    from pss_engine.cli.runtime import open_engine, open_model, writer_config
    from pss_engine.session import SessionRAG
    from pss_engine.state import StateStore
    from pss_engine.state.files import check_session_id
    from pss_engine.writer import History, Writer

    check_session_id(session)
    config, states, turns = writer_config(writer), StateStore(store), History.load(history)
    targets, source = _targets(turns, clue, negative_clue)
    before = _digest(states, session)
    with on_interrupt(lambda: _kept(states, session, before)):
        base = open_model(model)
        rag = SessionRAG(open_engine(model, base, [config.rank]), None, states)
        start = time.monotonic()
        with writing(session) as progress:
            state = rag.write(session, turns, targets, writer=Writer(base, config), progress=progress)
        seconds, folder = time.monotonic() - start, states.path(session)
        if as_json:
            emit_json({**state.describe(), "path": str(folder), "targets_from": source, "seconds": seconds})
        else:
            _show(state, folder, source, seconds)


def _targets(history: History, clue: str, negative_clue: str) -> tuple[SessionTargets, str]:
    """The targets, and where they come from."""
    from pss_engine.writer import SessionTargets, extract_targets

    if clue:
        return SessionTargets(clue, negative_clue), "command line"
    if negative_clue:
        raise ConfigError("--negative-clue needs --clue; give both, or none to take them from the history")
    if history.targets:
        return history.targets, "history file"
    return extract_targets(history.turns), "words of the history"


def _digest(store: StateStore, session: str) -> str:
    return store.head(session) if session in store else ""


def _kept(store: StateStore, session: str, before: str) -> str:
    now = _digest(store, session)
    if now != before:
        return f"the new state of session {session} is stored ({now[:12]})"
    return f"session {session} keeps the state it had ({now[:12]})" if now else f"session {session} still has no state"


def _show(state: SessionState, folder: Path, source: str, seconds: float) -> None:
    from pss_engine.cli.output import console, facts, mib

    meta = state.meta
    rows: list[tuple[str, Any]] = [
        ("session", state.session_id),
        ("digest", state.digest[:16]),
        ("size", f"{mib(state.num_bytes)}, rank {state.max_rank}, layers {state.layers[0]}-{state.layers[-1]}"),
        ("history", f"{meta.num_history_tokens} tokens"),
        ("clue", f"{meta.clue} (from the {source})"),
    ]
    if meta.negative_clue:
        rows.append(("not", meta.negative_clue))
    rows += [("readout", meta.readout), ("seconds", f"{seconds:.1f}"), ("path", folder)]
    console().print(facts(rows))
