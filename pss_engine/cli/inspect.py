"""``pss inspect``: a state, a store, a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import DEFAULT_MODEL, DEFAULT_STORE, Dtype, Json, StoreAccess, StoreFolder, StoreOptions

if TYPE_CHECKING:
    from pss_engine.state import SessionState

_STORE, _ACCESS = StoreOptions(), StoreAccess()


def state(session_or_path: str, /, *, store: StoreOptions = _STORE, as_json: Json = False) -> int:
    """What a state is, where it comes from, what it says.

    Parameters
    ----------
    session_or_path
        A session of the store, or a folder of a state or of any PEFT LoRA adapter.
    """
    from pss_engine.cli.output import console, emit_json, facts
    from pss_engine.cli.runtime import open_store
    from pss_engine.state import load_adapter

    states, folder = open_store(store), Path(session_or_path)
    if session_or_path in states.sessions() or not folder.is_dir():
        found, place = states.get(session_or_path), states.path(session_or_path)
    else:
        found, place = load_adapter(folder), folder
    if as_json:
        emit_json({**found.describe(), "path": str(place)})
    else:
        console().print(facts([*state_facts(found), ("path", place)]))
    return 0


def store(folder: StoreFolder = DEFAULT_STORE, /, *, access: StoreAccess = _ACCESS, as_json: Json = False) -> int:
    """The sessions of a store, each state read and checked.

    A damaged state is moved to the store's quarantine, and the exit code is 1; the others stay as they are.
    """
    from pss_engine.cli.output import emit_json
    from pss_engine.cli.runtime import open_store_at
    from pss_engine.errors import ConfigError, StateFormatError

    states = open_store_at(folder, access)
    if not states.root.is_dir():
        raise ConfigError(f"state store {states.root}: no such folder; pss write makes it")
    rows: list[dict[str, Any]] = []
    for session in states.sessions():
        try:
            rows.append(states.get(session).describe())
        except StateFormatError as error:
            rows.append({"session_id": session, "error": str(error)})
    damaged = sum("error" in row for row in rows)
    if as_json:
        total = sum(row.get("num_bytes", 0) for row in rows)
        emit_json(
            {
                "store": str(states.root),
                "num_sessions": len(rows),
                "num_bytes": total,
                "num_damaged": damaged,
                "sessions": rows,
            }
        )
    else:
        _show_store(states.root, rows)
    return 1 if damaged else 0


def model(
    model: Annotated[
        str, Parameter(env_var="PSS_MODEL", help="A folder, a .gguf file, a package or a hub id.")
    ] = DEFAULT_MODEL,
    /,
    *,
    rank: Annotated[int, Parameter(help="Of the state whose bytes are shown.")] = 32,
    num_session_layers: Annotated[int, Parameter(help="Layers above the cut.")] = 8,
    dtype: Annotated[Dtype, Parameter(help="Of the KV cache whose bytes are shown; auto: as on the CPU.")] = "auto",
    fingerprint: Annotated[
        bool, Parameter(help="Load the weights and show their fingerprint.", show_default=False)
    ] = False,
    as_json: Json = False,
) -> int:
    """Geometry of a model, and what its KV and its states weigh; no weights are loaded."""
    from pss_engine.cli.model_facts import model_facts
    from pss_engine.cli.output import console, emit_json, facts

    found = model_facts(model, rank, num_session_layers, dtype, fingerprint)
    if as_json:
        emit_json(found.to_dict())
    else:
        console().print(facts(found.rows()))
    return 0


def state_facts(state: SessionState) -> list[tuple[str, object]]:
    """What a state is, for people."""
    from pss_engine.cli.output import mib

    meta = state.meta
    written = ", ".join(
        f"{name} {value}" for name, value in meta.writer.items() if name not in ("instruction", "max_state_bytes")
    )
    rows: list[tuple[str, object]] = [
        ("session", state.session_id),
        ("digest", state.digest),
        ("size", f"{mib(state.num_bytes)} in {2 * len(state.factors)} tensors, {', '.join(state.dtypes)}"),
        ("rank", state.max_rank),
        ("layers", ", ".join(map(str, state.layers))),
        ("modules", ", ".join(state.modules)),
        ("model", f"{meta.base_model or 'unknown'} ({(meta.model_fingerprint or 'no fingerprint')[:16]})"),
        ("written", meta.created_at or "unknown"),
        ("writer", written or "unknown"),
        ("history", f"{meta.num_history_tokens} tokens" if meta.num_history_tokens else "unknown"),
        ("clue", meta.clue or "unknown"),
        ("not", meta.negative_clue or "none"),
        ("readout", meta.readout or "not recorded"),
    ]
    return rows


def _show_store(root: Path, rows: list[dict[str, Any]]) -> None:
    from pss_engine.cli.output import console, listing, mib

    table = listing()
    for name in ("session", "digest", "size", "written", "readout"):
        table.add_column(name, overflow="fold")
    for row in rows:
        if "error" in row:
            table.add_row(row["session_id"], "damaged", "", "", row["error"], style="red")
            continue
        meta = row["meta"]
        readout = " ".join((meta["readout"] or meta["clue"] or "").split())
        table.add_row(row["session_id"], row["digest"][:12], mib(row["num_bytes"]), meta["created_at"] or "", readout)
    console().print(table if rows else "no sessions")
    total = mib(sum(row.get("num_bytes", 0) for row in rows))
    console().print(f"{len(rows)} sessions, {total} in {root}", style="dim")
