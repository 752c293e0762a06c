"""The books of a running engine, proved every so many steps: what is wrong raises an alarm, never the engine."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pss_engine.kv import KVMemory
    from pss_engine.metrics import EngineCounters

MAX_DUMPS = 3
_log = logging.getLogger("pss_engine")


class Audit:
    """Runs :meth:`KVMemory.check` every ``every`` steps (0 = never).

    A book that does not balance is counted, logged, and written to a file for whoever looks into it; the requests go
    on, since their tokens do not depend on what is charged for them.

    Args:
        folder: where dumps go; empty = the system's folder for temporary files.
    """

    def __init__(self, memory: KVMemory, counters: EngineCounters, every: int, folder: str = "") -> None:
        self._memory, self._counters, self._every = memory, counters, every
        self._folder = Path(folder or tempfile.gettempdir())
        self._num_steps = 0
        self.dumps: list[Path] = []

    def step(self, live: Collection[str]) -> None:
        """Count a step; check where it is time. ``live``: ids of the calls that the engine knows."""
        self._num_steps += 1
        if self._every and self._num_steps % self._every == 0:
            self.run(live)

    def run(self, live: Collection[str]) -> None:
        self._counters.num_audits += 1
        try:
            self._memory.check(live)
        except Exception as error:  # books that are wrong may fail in any way
            self._counters.num_audit_alarms += 1
            _log.error("KV accounting does not balance: %s (%s)", error, self._dump(error, live))

    def _dump(self, error: Exception, live: Collection[str]) -> str:
        if len(self.dumps) == MAX_DUMPS:
            return f"{MAX_DUMPS} dumps were written before"
        path = self._folder / f"pss-kv-alarm-{os.getpid()}-{id(self):x}-{len(self.dumps) + 1}.json"
        pools = {
            group: {"references": pool.references, "num_cached": pool.num_cached, "num_free": pool.num_free}
            for group, pool in self._memory.pools.items()
        }
        document = {"error": str(error), "live": sorted(live), "ledger": self._memory.ledger.dump(), "pools": pools}
        try:
            path.write_text(json.dumps(document), "utf-8")
        except OSError as why:
            return f"no dump: {why}"
        self.dumps.append(path)
        return f"dump: {path}"
