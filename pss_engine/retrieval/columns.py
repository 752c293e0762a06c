"""Arrays in one safetensors file, written a piece at a time and mapped instead of read."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError, StateFormatError
from pss_engine.state.tensor_file import TensorFile

Array = npt.NDArray[Any]
# Wide items first: every array is then aligned, with no gaps between them.
_NAMES = {"int64": "I64", "float32": "F32", "int32": "I32", "float16": "F16", "int8": "I8", "uint8": "U8"}
_DTYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}


class ColumnWriter:
    """Columns of a table that is larger than memory: each grows in a file of its own until all are joined."""

    def __init__(self, folder: Path, dtypes: Mapping[str, str]) -> None:
        self._folder = folder
        self._dtypes = {name: np.dtype(dtypes[name]) for name in dtypes}
        self._files = {name: (folder / f"column-{i}").open("wb") for i, name in enumerate(dtypes)}
        self._tails: dict[str, tuple[int, ...]] = {}
        self._lengths = dict.fromkeys(dtypes, 0)

    def append(self, name: str, values: Array | bytes) -> None:
        array = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
        self._tails[name] = array.shape[1:]
        self._lengths[name] += len(array)
        self._files[name].write(np.ascontiguousarray(array, self._dtypes[name]).data)

    def finish(self, path: Path) -> None:
        """Join the columns into the safetensors file ``path`` and remove their own files."""
        for file in self._files.values():
            file.close()
        order = sorted(self._dtypes, key=lambda name: list(_NAMES).index(self._dtypes[name].name))
        shapes = {name: (self._lengths[name], *self._tails.get(name, ())) for name in order}
        with path.open("wb") as out:
            out.write(_header({name: (self._dtypes[name], shapes[name]) for name in order}))
            for name in order:
                part = Path(self._files[name].name)
                with part.open("rb") as column:
                    shutil.copyfileobj(column, out, 1 << 20)
                part.unlink()


def save_columns(path: Path, columns: Mapping[str, Array]) -> None:
    """Write arrays that are in memory."""
    order = sorted(columns, key=lambda name: list(_NAMES).index(columns[name].dtype.name))
    with path.open("wb") as out:
        out.write(_header({name: (columns[name].dtype, columns[name].shape) for name in order}))
        for name in order:
            out.write(np.ascontiguousarray(columns[name]).data)


def map_columns(path: Path, names: Iterable[str]) -> dict[str, Array]:
    """The arrays of a file, mapped: pages are read when they are touched; what is written to them stays in memory.

    Raises:
        ConfigError: the file is missing or damaged, or an array is not there.
    """
    try:
        with TensorFile(path) as file:
            entries = dict(file.entries)
    except StateFormatError as error:
        raise ConfigError(f"index file {error}") from None
    with path.open("rb") as raw:
        (size,) = struct.unpack("<Q", raw.read(8))
        header = json.loads(raw.read(size))
    found = {}
    for name in names:
        if name not in entries:
            raise ConfigError(f"index file {path}: array {name!r} is missing; it holds {', '.join(sorted(entries))}")
        entry, offset = entries[name], 8 + size + header[name]["data_offsets"][0]
        if entry.dtype not in _DTYPES:
            raise ConfigError(f"index file {path}: array {name!r} is {entry.dtype}; choices: {', '.join(_DTYPES)}")
        dtype = _DTYPES[entry.dtype]
        empty = entry.num_bytes == 0
        found[name] = np.zeros(entry.shape, dtype) if empty else np.memmap(path, dtype, "c", offset, entry.shape)
    return found


def _header(columns: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> bytes:
    entries, offset = {}, 0
    for name, (dtype, shape) in columns.items():
        end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype.name], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
