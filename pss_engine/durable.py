"""Files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".tmp-"


def temporary_name() -> str:
    """A name that no other process or thread uses."""
    return f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Create ``path`` and return once its bytes are on the disk."""
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Create or replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(temporary_name())
    try:
        write_durably(temporary, [data])
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make creations and renames inside a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
