"""``pss state``: the life of a session's state: versions, differences, going back, going out, going away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pss_engine.cli.options import Json, StoreOptions

if TYPE_CHECKING:
    from pss_engine.state import SessionState, StateStore

_STORE = StoreOptions()
VersionName = Annotated[str, Parameter(help="The beginning of a version's digest.", show_default=False)]


def log(session: str, /, *, store: StoreOptions = _STORE, as_json: Json = False) -> None:
    """The versions of a session's state, the current one last."""
    from pss_engine.cli.output import console, emit_json, listing
    from pss_engine.cli.runtime import open_store

    states = open_store(store)
    versions = states.log(session)
    if as_json:
        emit_json(
            {"session": session, "head": versions[-1].digest, "versions": [vars(version) for version in versions]}
        )
        return
    table = listing()
    for name in ("", "version", "digest", "time", "by"):
        table.add_column(name)
    for version in versions:
        head = "*" if version is versions[-1] else ""
        table.add_row(head, str(version.number), version.digest[:16], version.time, version.action)
    console().print(table)


def show(
    session: str,
    /,
    *,
    version: VersionName = "",
    store: StoreOptions = _STORE,
    as_json: Json = False,
) -> None:
    """What a version of a state is and says; default: the current one."""
    from pss_engine.cli.inspect import state_facts
    from pss_engine.cli.output import console, emit_json, facts
    from pss_engine.cli.runtime import open_store

    found = _version(open_store(store), session, version)
    if as_json:
        emit_json(found.describe())
    else:
        console().print(facts(state_facts(found)))


def diff(
    session: str,
    /,
    old: VersionName = "",
    new: VersionName = "",
    *,
    store: StoreOptions = _STORE,
    as_json: Json = False,
) -> None:
    """What changed between two versions: words, settings, and how far the weights moved.

    Parameters
    ----------
    session
        A session of the store.
    old
        The beginning of a digest; default: the version before the current one.
    new
        The beginning of a digest; default: the current version.
    """
    from pss_engine.cli.output import console, emit_json, facts
    from pss_engine.cli.runtime import open_store
    from pss_engine.state.diff import compare

    states = open_store(store)
    versions = states.log(session)
    before = old or versions[-2 if len(versions) > 1 else -1].digest
    found = compare(_version(states, session, before), _version(states, session, new))
    if as_json:
        emit_json(found)
        return
    rows: list[tuple[str, Any]] = [("old", found["old"][:16]), ("new", found["new"][:16])]
    rows += [(name, f"{a!r} -> {b!r}") for name, (a, b) in found["changed"].items()]
    rows += [(f"layer {layer}", f"weights moved by {share:.1%}") for layer, share in found["moved_by_layer"].items()]
    console().print(facts(rows))


def rollback(
    session: str,
    /,
    *,
    to: VersionName = "",
    store: StoreOptions = _STORE,
    as_json: Json = False,
) -> None:
    """Make an earlier version current again; default: the one before. That too can be rolled back."""
    from pss_engine.cli.output import emit_json
    from pss_engine.cli.runtime import open_store

    states = open_store(store)
    before = states.head(session)
    digest = states.rollback(session, to, expected=before)
    if as_json:
        emit_json({"session": session, "was": before, "head": digest})
    else:
        print(f"{session}: {before[:16]} -> {digest[:16]}")


def rm(session: str, /, *, store: StoreOptions = _STORE, as_json: Json = False) -> int:
    """Forget a session: all versions, readouts and quarantined copies; lists every file that is gone."""
    from pss_engine.cli.output import console, emit_json
    from pss_engine.cli.runtime import open_store

    proof = open_store(store).delete(session)
    if as_json:
        emit_json(proof.to_dict())
    else:
        for erased in proof.erased:
            console().print(f"gone  {erased.path}  {erased.num_bytes} bytes  sha256 {erased.sha256[:16]}")
        for digest in proof.kept:
            console().print(f"kept  {digest[:16]}: other sessions have the same state")
        for path in proof.left:
            console().print(f"LEFT  {path}")
    return 1 if proof.left else 0


def gc(
    *,
    keep_versions: Annotated[int, Parameter(help="Of each session, the newest ones; 0: all.")] = 0,
    store: StoreOptions = _STORE,
    as_json: Json = False,
) -> None:
    """Remove states that no session names, quarantined ones and leftovers."""
    from pss_engine.cli.output import emit_json
    from pss_engine.cli.runtime import open_store

    removed = open_store(store).gc(keep_versions or None)
    if as_json:
        emit_json({"num_removed": removed})
    else:
        print(f"{removed} objects removed")


def export(
    session: str,
    folder: Path,
    /,
    *,
    version: VersionName = "",
    store: StoreOptions = _STORE,
    as_json: Json = False,
) -> None:
    """Write a state as a plain PEFT adapter, which PEFT and vLLM load."""
    from pss_engine.cli.output import emit_json
    from pss_engine.cli.runtime import open_store
    from pss_engine.state import save_adapter

    found = _version(open_store(store), session, version)
    place = save_adapter(found, folder)
    if as_json:
        emit_json({"session": session, "digest": found.digest, "path": str(place)})
    else:
        print(place)


def import_(
    session: str,
    folder: Path,
    /,
    *,
    store: StoreOptions = _STORE,
    as_json: Json = False,
) -> None:
    """Store a PEFT LoRA adapter as a session's state."""
    from pss_engine.cli.output import emit_json
    from pss_engine.cli.runtime import open_store
    from pss_engine.state import load_adapter

    states = open_store(store)
    digest = states.put(load_adapter(folder, session_id=session))
    if as_json:
        emit_json({"session": session, "digest": digest})
    else:
        print(f"{session}: {digest[:16]}")


def _version(states: StateStore, session: str, version: str) -> SessionState:
    from pss_engine.errors import ConfigError

    if not version:
        return states.get(session)
    digests = list(dict.fromkeys(entry.digest for entry in states.log(session)))
    found = [digest for digest in digests if digest.startswith(version)]
    if len(found) != 1:
        some = ", ".join(digest[:16] for digest in digests)
        raise ConfigError(f"session {session}: {version!r:.80} names {len(found)} of its versions; choices: {some}")
    return states.get_digest(found[0], session)
