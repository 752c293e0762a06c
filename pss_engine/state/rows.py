"""StateRows: memory for a fixed number of states, on the host or on a device, in the kernels' layout."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property

import torch

from pss_engine.ops.lora import LoraSlice
from pss_engine.state import page_lock
from pss_engine.state.layout import StateLayout
from pss_engine.state.session_state import SessionState
from pss_engine.state.shape import TargetKey

_ALIGN_BYTES = 256


@dataclass(frozen=True, eq=False)
class TargetSlots:
    """All slots of one adapted linear layer, as ``lora_bgmv`` takes them; views, never copied.

    Attributes:
        lora_a: ``[S, R, H_in]``, inner two dims contiguous.
        lora_b: ``[S, H_out, R]``, inner two dims contiguous.
        scaling: ``[S]`` float32.
        ranks: ``[S]`` int32; 0 where the slot's state does not touch this layer. Beyond its rank a slot is zero.
    """

    lora_a: torch.Tensor
    lora_b: torch.Tensor
    scaling: torch.Tensor
    ranks: torch.Tensor

    def at(self, offset: int) -> LoraSlice:
        """The same as a slice of a fused projection that begins at column ``offset``."""
        return LoraSlice(self.lora_a, self.lora_b, self.scaling, self.ranks, offset)


class StateRows:
    """S rows of a layout in one allocation, with scaling and ranks beside them. Decides nothing, locks nothing.

    On the CPU a row takes memory only once it has been written.

    Args:
        layout: of a row.
        num_rows: S.
        device: where the memory is.
        reader: a GPU that reads this host memory, which is then page-locked for it.

    Attributes:
        touched: for each row the targets of the state in it.
    """

    def __init__(
        self,
        layout: StateLayout,
        num_rows: int,
        device: torch.device | str = "cpu",
        reader: torch.device | None = None,
    ) -> None:
        self.layout, self.num_rows, self._reader = layout, num_rows, reader
        self.touched: list[tuple[TargetKey, ...]] = [()] * num_rows
        with torch.inference_mode(False):
            if reader is None:
                self._memory = torch.empty(self._starts[-1], dtype=torch.uint8, device=device)
            else:
                self._memory = page_lock.allocate(self._starts[-1])
                weakref.finalize(self, page_lock.unlock, self._memory)
            self.rows, self.scaling, self.ranks = self._carve(self._memory)
            self.scaling.zero_()
            self.ranks.zero_()

    @property
    def num_bytes(self) -> int:
        """Of the whole allocation."""
        return self._memory.numel()

    @cached_property
    def views(self) -> dict[TargetKey, TargetSlots]:
        """The rows of each target as its kernels see them; made once, their addresses never change."""
        memory = self._memory if self._reader is None else page_lock.seen_by(self._reader, self._memory)
        rows, scaling, ranks = self._carve(memory)
        return {
            key: TargetSlots(*self.layout.split(rows, key), scaling[index], ranks[index])
            for key, index in self.layout.index.items()
        }

    @torch.inference_mode()
    def write(self, row: int, state: SessionState) -> None:
        """Put a state that fits into a row of host memory."""
        self.layout.pack(state, self.rows[row], self.scaling[:, row], self.ranks[:, row])
        self.touched[row] = tuple(state.factors)

    @torch.inference_mode()
    def copy_row(self, row: int, source: StateRows, source_row: int) -> None:
        """Copy a row of another memory with the same layout; on a GPU in the order of the current stream."""
        self.rows[row].copy_(source.rows[source_row], non_blocking=True)
        self.scaling[:, row].copy_(source.scaling[:, source_row], non_blocking=True)
        self.ranks[:, row].copy_(source.ranks[:, source_row], non_blocking=True)
        self.touched[row] = source.touched[source_row]

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Zero a row and its scaling and ranks."""
        self.touched[row] = ()
        self.ranks[:, row].zero_()
        self.scaling[:, row].zero_()
        self.rows[row].zero_()

    @cached_property
    def _starts(self) -> list[int]:
        """Byte offsets of the rows, the scaling and the ranks, and the end."""
        table = 4 * self.layout.num_targets * self.num_rows
        starts = [0]
        for num_bytes in (self.num_rows * self.layout.numel * self.layout.dtype.itemsize, table, table):
            starts.append(starts[-1] + -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES)
        return starts

    def _carve(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows ``[S, numel]``, scaling ``[N, S]`` and ranks ``[N, S]`` in an allocation."""
        shapes = ((self.num_rows, self.layout.numel), *[(self.layout.num_targets, self.num_rows)] * 2)
        dtypes = (self.layout.dtype, torch.float32, torch.int32)
        rows, scaling, ranks = (
            memory[start : start + size[0] * size[1] * dtype.itemsize].view(dtype).view(size)
            for start, size, dtype in zip(self._starts[:-1], shapes, dtypes, strict=True)
        )
        return rows, scaling, ranks
