"""Small files: names that cannot escape a folder, bounded reads, what went wrong with the disk."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pss_engine.errors import CapacityError, ConfigError, StateFormatError

MAX_JSON_BYTES = 1 << 20

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SESSION_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def is_session_id(name: object) -> bool:
    """Whether a name can be a session id, and so a folder name everywhere."""
    return isinstance(name, str) and _SESSION_ID.fullmatch(name) is not None


def check_session_id(session_id: str) -> str:
    """The id itself; ConfigError if it is not one."""
    if not is_session_id(session_id):
        shown = repr(session_id)[:80]
        raise ConfigError(
            f"session id {shown}: must be 1 to 128 of the characters a-z 0-9 . _ - and start with a letter or digit"
        )
    return session_id


def open_regular(path: Path, follow_symlinks: bool) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        StateFormatError: no such file, not a regular file, or a symbolic link where links are refused.
        ConfigError: the file is there and cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_symlinks:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if path.is_symlink():
            raise StateFormatError(f"{path}: is a symbolic link; links are refused here")
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except FileNotFoundError:
        raise StateFormatError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StateFormatError(f"{path}: is not a regular file")
    return file


def read_json(path: Path, follow_symlinks: bool = True) -> dict[str, Any]:
    """The JSON object in a file of at most 1 MiB; StateFormatError if it is anything else."""
    with open_regular(path, follow_symlinks) as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise StateFormatError(f"{path}: larger than {MAX_JSON_BYTES} bytes, the most allowed for JSON of a state")
    return parse_json(data, str(path))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """A strict JSON object: UTF-8, no NaN or Infinity, no repeated names; StateFormatError otherwise."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise StateFormatError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise StateFormatError(f"{where}: holds a JSON {type(value).__name__}, an object is needed")
    return value


def to_json_bytes(value: dict[str, Any]) -> bytes:
    """Readable UTF-8 JSON with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


@contextmanager
def disk_errors(owner: str, folder: Path, num_bytes: int) -> Iterator[None]:
    """Tell in one line what went wrong with the disk: CapacityError if it is full, ConfigError otherwise."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_SPACE:
            free = shutil.disk_usage(folder).free
            raise CapacityError(f"{owner} {folder}: {reason}", num_bytes, free, "bytes") from error
        raise ConfigError(f"{owner} {folder}: cannot be written: {reason}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return result
