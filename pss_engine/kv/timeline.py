"""KV bytes over time: JSON lines written as charges change, and read back as curves. Integers only."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pss_engine.errors import ConfigError
from pss_engine.kv.geometry import GROUPS, KVGeometry
from pss_engine.kv.memory import KVMemory

SCHEMA = "pss-kv-timeline/1"
BY = ("session", "agent", "query", "call")
_log = logging.getLogger("pss_engine")
NOBODY = "(none)"
"""Name of calls that were made without a session, agent or query."""


class Timeline:
    """Writes a line for each call whose charge has changed, and for the cached blocks.

    The first line tells schema, block size, dtype and block bytes; each other one has ``step``, ``time`` (seconds since
    the file was begun), ``owner`` (``call`` or ``cache``), the names of the call, and ``bytes`` from then on.

    Attributes:
        is_broken: the file could not be written any more (a full disk); it holds what came before.

    Raises:
        ConfigError: the file cannot be written at all.
    """

    def __init__(self, path: Path, geometry: KVGeometry) -> None:
        self.is_broken = False
        self._path = path
        self._start = time.monotonic()
        self._charged: dict[str, tuple[dict[str, str], int]] = {}
        self._cached = 0
        block_bytes = {group: geometry.block_bytes(group) for group in GROUPS}
        head = {"schema": SCHEMA, "block_tokens": geometry.block_size, "kv_dtype": geometry.dtype}
        try:
            self._file = path.open("w", encoding="utf-8")
            self._write([{**head, "block_bytes": block_bytes}])
        except OSError as error:
            raise ConfigError(f"kv_timeline {str(path)!r} cannot be written: {error.strerror}") from None

    def record(self, step: int, memory: KVMemory) -> None:
        """Write what has changed since the last record; a file that fails is given up, the engine goes on."""
        if self.is_broken:
            return
        when = {"step": step, "time": round(time.monotonic() - self._start, 6)}
        live = {usage.call_id: (usage, charged) for usage, charged in memory.ledger.owners()}
        lines: list[dict[str, Any]] = []
        for call_id in [call_id for call_id in self._charged if call_id not in live]:
            names, before = self._charged.pop(call_id)
            if before:
                lines.append({**when, "owner": "call", **names, "bytes": 0})
        for call_id, (usage, charged) in live.items():
            if charged != self._charged.get(call_id, ({}, 0))[1]:
                names = {"call": call_id, "query": usage.query, "session": usage.session, "agent": usage.agent}
                self._charged[call_id] = (names, charged)
                lines.append({**when, "owner": "call", **names, "bytes": charged})
        if (cached := memory.bytes_cached) != self._cached:
            self._cached = cached
            lines.append({**when, "owner": "cache", "bytes": cached})
        try:
            self._write(lines)
        except OSError as error:
            self.is_broken = True
            _log.error("kv_timeline %s ends at step %d: %s", self._path, step, error.strerror)

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if lines:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines))
            self._file.flush()


@dataclass(frozen=True)
class Curves:
    """Bytes by owner at the times of change; each value holds until the next time.

    Attributes:
        names: owners in order of appearance, by session, agent, query or call; ``values[i][j]`` is that of ``names[i]``
            at ``times[j]``.
        cached: bytes of blocks that no call held.
        peak_at: index of the time at which all calls together held most.
    """

    by: str
    times: tuple[float, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    cached: tuple[int, ...]
    peak_at: int

    @property
    def peak_bytes(self) -> int:
        return sum(curve[self.peak_at] for curve in self.values)

    @property
    def peak_owners(self) -> list[tuple[str, int]]:
        """Who held how much at the peak, the largest first."""
        held = ((name, curve[self.peak_at]) for name, curve in zip(self.names, self.values, strict=True))
        return sorted(((name, value) for name, value in held if value), key=lambda pair: -pair[1])


def read_curves(path: Path, by: str = "session") -> Curves:
    """Curves of a timeline file.

    Raises:
        ConfigError: no such file, not a timeline, a damaged line (named by its number), or an unknown ``by``.
    """
    if by not in BY:
        raise ConfigError(f"timeline by {by!r} is unknown; choices: {', '.join(BY)}")
    held: dict[str, int] = {}
    now: dict[str, int] = {}
    names: dict[str, None] = {}
    moments: list[tuple[float, int, dict[str, int], int]] = []
    cached = 0
    for line in _lines(path):
        if line["owner"] == "cache":
            cached = line["bytes"]
        else:
            call, name = line["call"], line[by] or NOBODY
            names[name] = None
            now[name] = now.get(name, 0) + line["bytes"] - held.pop(call, 0)
            if line["bytes"]:
                held[call] = line["bytes"]
        if moments and moments[-1][0] == line["time"]:
            moments.pop()
        moments.append((line["time"], line["step"], {name: value for name, value in now.items() if value}, cached))
    if not moments:
        raise ConfigError(f"timeline {str(path)!r} has no changes: nothing was held while it was written")
    totals = [sum(moment[2].values()) for moment in moments]
    return Curves(
        by,
        tuple(moment[0] for moment in moments),
        tuple(moment[1] for moment in moments),
        tuple(names),
        tuple(tuple(moment[2].get(name, 0) for moment in moments) for name in names),
        tuple(moment[3] for moment in moments),
        totals.index(max(totals)),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        texts = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"timeline {str(path)!r} cannot be read: {error}") from None
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
            if number == 1:
                if line["schema"] != SCHEMA:
                    raise ConfigError(f"timeline {str(path)!r} has schema {line['schema']!r}; choices: {SCHEMA}")
                continue
            names = () if line["owner"] == "cache" else ("call", "query", "session", "agent")
            if not all(isinstance(line[name], str) for name in names):
                raise TypeError("a name is no text")
            if not all(isinstance(line[name], (int, float)) for name in ("step", "time", "bytes")):
                raise TypeError("a figure is no number")
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"timeline {str(path)!r}, line {number}: {type(error).__name__}: {error}") from None
        yield line
