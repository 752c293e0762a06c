"""``pss write --batch``: many sessions in one batch; run again, it goes on where it was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pss_engine.cli.options import GateOptions, ModelOptions
from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.session import Stored
    from pss_engine.state import StateStore
    from pss_engine.writer import WriteJob, WriterConfig


def read_jobs(path: Path) -> list[WriteJob]:
    """One job a line: ``session``, ``history`` (a file, relative to this one) or ``turns``, and ``targets`` if given.

    Raises:
        ConfigError: a line that is no job, or a session that comes twice; names file and line.
    """
    from pss_engine.state.files import check_session_id
    from pss_engine.writer import History, SessionTargets, WriteJob

    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"batch {str(path)!r} cannot be read: {error}") from error
    jobs: dict[str, WriteJob] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"batch {str(path)!r}, line {number}"
        row = _object(line, where)
        unknown = sorted(set(row) - {"session", "history", "turns", "targets"})
        if unknown or "session" not in row or ("history" in row) == ("turns" in row):
            what = f"{unknown[0]!r} is unknown" if unknown else "is no session"
            raise ConfigError(f"{where}: {what}; it has 'session', 'history' or 'turns', and perhaps 'targets'")
        session = check_session_id(row["session"])
        if session in jobs:
            raise ConfigError(f"{where}: session {session} comes twice; give each history its own session id")
        history = (
            History.load(path.parent / str(row["history"]))
            if "history" in row
            else History.from_rows(_rows(row["turns"], where), where)
        )
        targets = row.get("targets")
        jobs[session] = WriteJob(
            session, history, None if targets is None else SessionTargets.from_dict(targets, where)
        )
    if not jobs:
        raise ConfigError(f"batch {str(path)!r} is empty; it needs a session a line")
    return list(jobs.values())


def write_batch(
    path: Path, states: StateStore, config: WriterConfig, gate: GateOptions, model: ModelOptions, as_json: bool
) -> int:
    """Write the sessions of a file; 1 if any of them failed."""
    from pss_engine.cli.output import emit_json, on_interrupt
    from pss_engine.cli.progress import writing_many
    from pss_engine.cli.runtime import open_engine, open_model, readout_gate
    from pss_engine.session import StateWriting
    from pss_engine.writer import Writer

    jobs = read_jobs(path)
    done: dict[str, Stored] = {}

    def kept() -> str:
        stored = sum(found.record is not None for found in done.values())
        return f"{stored} of {len(jobs)} sessions are stored; the same command goes on"

    with on_interrupt(kept):
        base = open_model(model)
        engine = open_engine(model, base, [config.rank])
        writing = StateWriting(
            engine, states, Writer(base, config, gate.writer_memory_bytes), readout_gate(gate), ask_base=gate.ask_base
        )
        start = time.monotonic()
        with writing_many(len(jobs)) as (on_step, on_stored):

            def stored(found: Stored) -> None:
                done[found.session_id] = found
                on_stored(found)

            results = writing.write(jobs, on_step, stored)
        seconds = time.monotonic() - start
    rows = [_row(result) for result in results]
    counts = {
        "num_written": sum(result.new and result.record is not None for result in results),
        "num_stored_before": sum(not result.new for result in results),
        "num_flagged": sum(not row.get("check", {}).get("passed", True) for row in rows),
        "num_failed": sum("error" in row for row in rows),
    }
    if as_json:
        emit_json({"store": str(states.root), **counts, "seconds": seconds, "sessions": rows})
    else:
        _show(rows, counts, seconds)
    return 1 if counts["num_failed"] else 0


def _row(result: Stored) -> dict[str, Any]:
    if result.record is None:
        return {"session": result.session_id, "error": str(result.error)}
    meta = result.record.meta
    return {
        "session": result.session_id,
        "digest": result.record.digest,
        "new": result.new,
        "clue": meta.clue,
        "targets_from": meta.targets.get("source"),
        "readout": meta.readout,
        "check": dict(meta.readout_check),
    }


def _show(rows: list[dict[str, Any]], counts: dict[str, int], seconds: float) -> None:
    from pss_engine.cli.output import console, listing
    from pss_engine.cli.write import verdict

    table = listing()
    for name in ("session", "digest", "clue from", "readout", "check"):
        table.add_column(name, overflow="fold")
    for row in rows:
        if "error" in row:
            table.add_row(row["session"], "failed", "", row["error"], "", style="red")
        else:
            check = verdict(row["check"]) if row["check"] else ""
            table.add_row(row["session"], row["digest"][:12], row["targets_from"], row["readout"], check)
    console().print(table)
    line = ", ".join(f"{count} {name.removeprefix('num_').replace('_', ' ')}" for name, count in counts.items())
    console().print(f"{line}; {seconds:.1f} s", style="dim")


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error.msg}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return row


def _rows(turns: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ConfigError(f"{where}: 'turns' must be a list of objects with 'role' and 'content'")
    return turns
