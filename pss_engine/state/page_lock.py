"""Host memory that a GPU reads: page-locked in its exact size, and seen as a tensor of that GPU."""

from __future__ import annotations

import mmap

import torch

from pss_engine.errors import CapacityError


def allocate(num_bytes: int) -> torch.Tensor:
    """Page-locked host memory, ``[num_bytes]`` uint8, not initialised; to be given back with :func:`unlock`.

    PyTorch's own pinned allocator rounds up to a power of two, which a budget of gigabytes cannot afford.

    Raises:
        CapacityError: the memory cannot be locked.
    """
    whole = torch.empty(num_bytes + 2 * mmap.PAGESIZE, dtype=torch.uint8)
    start = -whole.data_ptr() % mmap.PAGESIZE
    memory = whole[start : start + num_bytes]
    error = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), _whole_pages(num_bytes), 0))
    if error:
        raise CapacityError(f"page-locked host memory (CUDA error {error})", num_bytes, 0, "bytes")
    return memory


def unlock(memory: torch.Tensor) -> None:
    """Undo the lock of :func:`allocate`."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def seen_by(device: torch.device, memory: torch.Tensor) -> torch.Tensor:
    """The same bytes as a tensor of the GPU, which keeps the memory alive; nothing is copied."""
    return torch.as_tensor(_Mapped(memory), device=device)


class _Mapped:
    """Memory as CUDA's array interface describes it; locked memory has one address for host and GPU."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.numel(),),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "version": 2,
        }


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
