"""Reading a safetensors file with its header proved before any tensor byte is read."""

from __future__ import annotations

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

_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as the header declares it: safetensors dtype name, shape, size in bytes."""

    dtype: str
    shape: tuple[int, ...]
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
        """All tensors on the CPU, by name."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        data = self._head + self._file.read(self._size - len(self._head))
        if len(data) != self._size:
            raise StateFormatError(f"{self._path}: truncated: {len(data)} bytes read, {self._size} expected")
        try:
            return load(data)
        except SafetensorError as error:
            raise StateFormatError(f"{self._path}: not a valid safetensors file: {error}") from None

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
        entry, begin, end = _parse_entry(raw, f"{where}: {name}")
        entries[name] = entry
        spans.append((begin, end, name))
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


def _parse_entry(raw: object, where: str) -> tuple[TensorEntry, int, int]:
    if not isinstance(raw, dict) or not {"dtype", "shape", "data_offsets"} <= set(raw):
        raise StateFormatError(f"{where}: header entry needs dtype, shape and data_offsets")
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise StateFormatError(f"{where}: dtype {dtype!r:.40} is unknown; choices: {', '.join(_ITEM_BYTES)}")
    if not _is_naturals(shape) or not _is_naturals(offsets) or len(offsets) != 2:
        raise StateFormatError(f"{where}: shape and data_offsets must be lists of non-negative integers")
    num_bytes = _ITEM_BYTES[dtype]
    for size in shape:
        num_bytes *= size
    if offsets[1] - offsets[0] != num_bytes:
        raise StateFormatError(
            f"{where}: {dtype} of shape {shape} takes {num_bytes} bytes, the header gives it {offsets[1] - offsets[0]}"
        )
    return TensorEntry(dtype, tuple(shape), num_bytes), offsets[0], offsets[1]


def _is_naturals(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 8 and all(type(item) is int and item >= 0 for item in value)
