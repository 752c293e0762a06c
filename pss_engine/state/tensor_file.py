"""Reading a safetensors file with its header proved before any tensor byte is read."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from pss_engine.errors import StateFormatError
from pss_engine.state.files import open_regular, parse_json

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 1 << 20

_DTYPES = {
    "F64": (8, "float64"), "F32": (4, "float32"), "F16": (2, "float16"), "BF16": (2, "bfloat16"),
    "F8_E4M3": (1, "float8_e4m3fn"), "F8_E5M2": (1, "float8_e5m2"),
    "I64": (8, "int64"), "I32": (4, "int32"), "I16": (2, "int16"), "I8": (1, "int8"),
    "U64": (8, "uint64"), "U32": (4, "uint32"), "U16": (2, "uint16"), "U8": (1, "uint8"), "BOOL": (1, "bool"),
}  # fmt: skip
"""Names of safetensors: bytes of an element, name in torch."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as the header declares it: safetensors dtype name, shape, where its bytes begin, how many they are."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


class TensorFile:
    """An open safetensors file; a context manager.

    ``entries`` is proved once opened: the header is at most 1 MiB, every shape times dtype fills its span, the spans
    follow each other without gap or overlap, and the file ends where the last one does. ``load()`` then reads the
    tensors. The file is read, not mapped, so that a file that shrinks later cannot kill the process.

    Raises:
        StateFormatError: the file is missing, truncated, or its header is wrong.
    """

    def __init__(self, path: Path | str, follow_symlinks: bool = True, file: BinaryIO | None = None) -> None:
        """``file``: opened already, then ``path`` only names it."""
        self._path = path
        self._file = open_regular(Path(path), follow_symlinks) if file is None else file
        try:
            self._size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            self._head = self._read_head()
            self.entries = _parse_header(self._head[8:], self._size - len(self._head), str(path))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def load(self) -> dict[str, torch.Tensor]:
        """All tensors on the CPU, by name: views of one piece of memory, which goes back to the system with them."""
        import torch

        dtypes = {name: getattr(torch, kind) for name, (_, kind) in _DTYPES.items()}
        size = self._size - len(self._head)
        memory = mmap.mmap(-1, max(1, size))
        found = self._file.readinto(memoryview(memory)[:size])  # type: ignore[attr-defined]
        if found != size:
            raise StateFormatError(
                f"{self._path}: truncated: {len(self._head) + found} bytes read, {self._size} expected"
            )
        data = torch.frombuffer(memory, dtype=torch.uint8)
        tensors = {}
        for name, entry in self.entries.items():
            part = data[entry.begin : entry.begin + entry.num_bytes]
            aligned = part if entry.begin % _DTYPES[entry.dtype][0] == 0 else part.clone()
            tensors[name] = aligned.view(dtypes[entry.dtype]).view(entry.shape)
        return tensors

    def _read_head(self) -> bytes:
        start = self._file.read(8)
        if len(start) < 8:
            raise StateFormatError(f"{self._path}: truncated: {self._size} bytes, a safetensors file has at least 8")
        length = int.from_bytes(start, "little")
        if length > MAX_HEADER_BYTES:
            raise StateFormatError(
                f"{self._path}: safetensors header of {length} bytes, at most {MAX_HEADER_BYTES} allowed"
            )
        header = self._file.read(length)
        if len(header) != length:
            raise StateFormatError(f"{self._path}: truncated: header of {length} bytes, {len(header)} in the file")
        return start + header


def _parse_header(header: bytes, data_bytes: int, where: str) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    spans = []
    for name, raw in parse_json(header, f"{where}: header").items():
        if name == "__metadata__":
            continue
        entry = entries[name] = _parse_entry(raw, f"{where}: {name}")
        spans.append((entry.begin, entry.begin + entry.num_bytes, name))
    reached = 0
    for begin, end, name in sorted(spans):
        if begin != reached:
            raise StateFormatError(f"{where}: {name}: data begins at byte {begin}, must follow on at {reached}")
        reached = end
    if reached != data_bytes:
        what = "truncated" if data_bytes < reached else "bytes after the last tensor"
        raise StateFormatError(
            f"{where}: {what}: {data_bytes} bytes of tensor data in the file, the header declares {reached}"
        )
    return entries


def _parse_entry(raw: object, where: str) -> TensorEntry:
    if not isinstance(raw, dict) or not {"dtype", "shape", "data_offsets"} <= set(raw):
        raise StateFormatError(f"{where}: header entry needs dtype, shape and data_offsets")
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise StateFormatError(f"{where}: dtype {dtype!r:.40} is unknown; choices: {', '.join(_DTYPES)}")
    if not _is_naturals(shape) or not _is_naturals(offsets) or len(offsets) != 2:
        raise StateFormatError(f"{where}: shape and data_offsets must be lists of non-negative integers")
    num_bytes, _ = _DTYPES[dtype]
    for size in shape:
        num_bytes *= size
    if offsets[1] - offsets[0] != num_bytes:
        raise StateFormatError(
            f"{where}: {dtype} of shape {shape} takes {num_bytes} bytes, the header gives it {offsets[1] - offsets[0]}"
        )
    return TensorEntry(dtype, tuple(shape), offsets[0], num_bytes)


def _is_naturals(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 8 and all(type(item) is int and item >= 0 for item in value)
