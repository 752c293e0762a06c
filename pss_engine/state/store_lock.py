"""The lock of a store: one writer or many readers, and who it is that holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pss_engine.errors import PSSError

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.05


class StoreLocked(PSSError):
    """A store that another process is writing to; the message says which, for how long, and at what."""


@contextmanager
def hold(path: Path, exclusive: bool, timeout_s: float, work: str) -> Iterator[None]:
    """Hold the lock file, shared or exclusively; the system lets go of it when the process ends, however it ends.

    Raises:
        StoreLocked: not to be had within ``timeout_s``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        _acquire(descriptor, exclusive, timeout_s, path)
        if exclusive:
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "work": work}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
        if exclusive:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, exclusive: bool, timeout_s: float, path: Path) -> None:
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    deadline, wait_s = time.monotonic() + timeout_s, _FIRST_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StoreLocked(f"state store {path.parent}: {_owner(descriptor)}; waited {timeout_s:g} s") from None
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _owner(descriptor: int) -> str:
    with suppress(ValueError, KeyError, TypeError):
        owner = json.loads(os.pread(descriptor, 4096, 0))
        age = time.time() - owner["since"]
        what = f" ({owner['work']})" if owner["work"] else ""
        return f"locked by process {owner['pid']} on {owner['host']} for {age:.1f} s{what}"
    return "locked by readers"
