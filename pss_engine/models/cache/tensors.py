"""A safetensors file whose tensors are read straight to where they will lie, each proved by its digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from pss_engine.durable import write_durably
from pss_engine.models.memory import WeightMemory

MAX_HEADER_BYTES = 1 << 26
ALIGNMENT = 64
DTYPES = {"U8": torch.uint8, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Damaged(Exception):
    """What is kept is not what was written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Write contiguous CPU tensors in their order, without a copy of any; returns the sha256 of each."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    data = {name: _bytes(tensor) for name, tensor in tensors.items()}
    write_durably(path, [len(text).to_bytes(8, "little"), text, *data.values()])
    return {name: hashlib.sha256(part).hexdigest() for name, part in data.items()}


def read_tensors(path: Path, digests: Mapping[str, str], memory: WeightMemory) -> dict[str, Tensor]:
    """All tensors of a file that :func:`write_tensors` wrote, in ``memory``.

    They are read, not mapped: proving them reads all of them anyway, and a mapped file that shrinks kills the process.

    Raises:
        Damaged: a size, a name or a digest is another than when it was written.
    """
    with path.open("rb") as file:
        start, header = _header(file.fileno())
        if set(header) != set(digests):
            raise Damaged(f"{path.name}: {len(header)} tensors, {len(digests)} were written")
        try:
            spans = {name: (entry["data_offsets"][0], entry["data_offsets"][1]) for name, entry in header.items()}
            size = start + max((end for _, end in spans.values()), default=0)
            if os.fstat(file.fileno()).st_size != size:
                raise Damaged(f"{path.name}: {os.fstat(file.fileno()).st_size} bytes, {size} were written")
            found = {name: _place(entry, memory) for name, entry in header.items()}
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise Damaged(f"{path.name}: header: {error!r}") from None

        def read(name: str) -> None:
            target = _bytes(found[name])
            _read(file.fileno(), target, start + spans[name][0], path.name)
            if hashlib.sha256(target).hexdigest() != digests[name]:
                raise Damaged(f"{path.name}: tensor {name} has another digest than when it was written")

        with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as pool:
            list(pool.map(read, found))
    return found


def _header(file: int) -> tuple[int, dict[str, dict[str, list[int]]]]:
    """Where the data begins, and the entry of each tensor."""
    size = int.from_bytes(os.pread(file, 8, 0), "little")
    text = os.pread(file, size, 8) if size <= MAX_HEADER_BYTES else b""
    try:
        header = json.loads(text)
    except ValueError:
        raise Damaged(f"header of {size} bytes is not readable") from None
    if not isinstance(header, dict):
        raise Damaged("header is not an object")
    return 8 + size, header


def _place(entry: dict[str, list[int]], memory: WeightMemory) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype = DTYPES[str(entry["dtype"])]
    return memory.take(end - begin).view(dtype).view(entry["shape"])


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


def _read(file: int, target: memoryview, at: int, name: str) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done:]], at + done)
        if count == 0:
            raise Damaged(f"{name}: ends at byte {at + done}")
        done += count
