"""Tier 2 in this process, and in a SQLite file that outlives it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pss_engine.agents.memory.key_value import StoreDown

Clock = Callable[[], float]


class MemoryKV:
    """See :class:`KeyValueStore`: a dictionary. Safe between threads."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._held: dict[tuple[str, str], tuple[bytes, float]] = {}

    def get(self, namespace: str, key: str) -> bytes | None:
        with self._lock:
            return self._get((namespace, key))

    def put_once(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> bool:
        with self._lock:
            if self._get((namespace, key)) is not None:
                return False
            self._held[namespace, key] = (value, float("inf") if ttl_s is None else self._clock() + ttl_s)
            return True

    def clear(self, namespace: str) -> int:
        with self._lock:
            gone = [place for place in self._held if place[0] == namespace]
            alive = sum(self._get(place) is not None for place in gone)
            for place in gone:
                self._held.pop(place, None)
            return alive

    def keys(self, namespace: str) -> list[str]:
        with self._lock:
            places = [place for place in self._held if place[0] == namespace]
            return sorted(place[1] for place in places if self._get(place) is not None)

    def close(self) -> None:
        """Nothing is written."""

    def _get(self, place: tuple[str, str]) -> bytes | None:
        value, ends = self._held.get(place, (None, 0.0))
        if value is not None and self._clock() >= ends:
            del self._held[place]
            return None
        return value


class SqliteKV:
    """See :class:`KeyValueStore`: one file, which several processes may use at once."""

    def __init__(self, path: Path, clock: Clock = time.time, timeout_s: float = 10.0) -> None:
        self._clock, self._lock = clock, threading.Lock()
        with self._failing():
            self._db = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS kv (namespace TEXT, key TEXT, value BLOB NOT NULL, ends REAL,"
                " PRIMARY KEY (namespace, key)) WITHOUT ROWID"
            )

    def get(self, namespace: str, key: str) -> bytes | None:
        rows = self._run(
            "SELECT value FROM kv WHERE namespace = ? AND key = ? AND (ends IS NULL OR ends > ?)",
            (namespace, key, self._clock()),
        ).fetchall()
        return bytes(rows[0][0]) if rows else None

    def put_once(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> bool:
        now = self._clock()
        # one statement, so that of two writers one wins; a value whose time is over may be replaced
        cursor = self._run(
            "INSERT INTO kv VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value, ends = excluded.ends"
            " WHERE kv.ends <= ?",
            (namespace, key, value, None if ttl_s is None else now + ttl_s, now),
        )
        return cursor.rowcount == 1

    def clear(self, namespace: str) -> int:
        alive = len(self.keys(namespace))
        self._run("DELETE FROM kv WHERE namespace = ?", (namespace,))
        return alive

    def keys(self, namespace: str) -> list[str]:
        sql = "SELECT key FROM kv WHERE namespace = ? AND (ends IS NULL OR ends > ?) ORDER BY key"
        return [key for (key,) in self._run(sql, (namespace, self._clock())).fetchall()]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _run(self, sql: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        with self._failing(), self._lock:
            return self._db.execute(sql, values)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreDown(f"SQLite: {error}") from None
