"""The inputs of a captured decode step: tensors whose addresses never change, filled anew for every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pss_engine.engine.scheduler import Chunk
from pss_engine.kv import GROUPS

NO_STATE = -1


class DecodeBuffers:
    """Inputs of up to ``num_rows`` rows with one new token each, on the device and, page-locked, on the host.

    A row that is not in use is token 0 at position 0 of the base model, alone in the reserved block. All such rows are
    alike, so that they write the same keys and values into it; no other row has that block in its table.

    Args:
        max_blocks: M, of one row in one layer group.
        spare_block: the reserved block, in both layer groups.

    Attributes:
        token_ids, positions: [num_rows] int64.
        slot_ids: [num_rows] int32, -1 = base model.
        context_lens: [num_rows] int32.
        kv_rows: by layer group, [num_rows] int64.
        block_tables: by layer group, [num_rows, M] int32.
        query_starts: [num_rows + 1] int32, counting up.
        rows: [num_rows] int64, counting up.
    """

    def __init__(self, num_rows: int, max_blocks: int, block_size: int, spare_block: int, device: torch.device) -> None:
        self.num_rows, self._block_size, self._spare_block = num_rows, block_size, spare_block
        on_gpu = device.type == "cuda"
        self._pairs: list[tuple[Tensor, Tensor]] = []

        def pair(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
            host = torch.zeros(shape, dtype=dtype, pin_memory=on_gpu)
            return host, host.to(device, copy=True)

        def vector(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            self._pairs.append(pair(dtype, num_rows))
            return self._pairs[-1]

        self._host_tokens, self.token_ids = vector(torch.int64)
        self._host_positions, self.positions = vector(torch.int64)
        self._host_slots, self.slot_ids = vector(torch.int32)
        self._host_contexts, self.context_lens = vector(torch.int32)
        kv_rows = {group: vector(torch.int64) for group in GROUPS}
        tables = {group: pair(torch.int32, num_rows, max_blocks) for group in GROUPS}
        self._host_kv_rows, self.kv_rows = ({g: both[i] for g, both in kv_rows.items()} for i in (0, 1))
        self._host_tables, self.block_tables = ({g: both[i] for g, both in tables.items()} for i in (0, 1))
        self._blocks: dict[str, list[list[int]]] = {group: [[] for _ in range(num_rows)] for group in GROUPS}
        self.query_starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self.rows = torch.arange(num_rows, device=device)
        self.fill([], [], num_rows)

    def fill(self, chunks: Sequence[Chunk], slots: Sequence[int], num_rows: int) -> None:
        """The step of these chunks, one token each, with the slots of their states, padded to ``num_rows`` rows.

        The logits of the step before must have been read: the host's side is then no longer copied from.
        """
        assert len(chunks) == len(slots) <= num_rows <= self.num_rows
        at = [chunk.sequence.num_stored for chunk in chunks]
        padding = [0] * (num_rows - len(chunks))
        _put(self._host_tokens, [c.sequence.token_ids[p] for c, p in zip(chunks, at, strict=True)] + padding)
        _put(self._host_positions, at + padding)
        _put(self._host_slots, [*slots, *(NO_STATE for _ in padding)])
        _put(self._host_contexts, [p + 1 for p in at] + [1 for _ in padding])
        size, spare = self._block_size, self._spare_block
        for group in GROUPS:
            tables = [c.sequence.kv.tables[group].blocks[: p // size + 1] for c, p in zip(chunks, at, strict=True)]
            tables += [[spare] for _ in padding]
            kv_rows = [blocks[-1] * size + p % size for blocks, p in zip(tables, at + padding, strict=True)]
            _put(self._host_kv_rows[group], kv_rows)
            for row, blocks in enumerate(tables):
                self._put_blocks(group, row, blocks)
        for host, device in self._pairs:
            device[:num_rows].copy_(host[:num_rows], non_blocking=True)

    def _put_blocks(self, group: str, row: int, blocks: list[int]) -> None:
        """Tables are wide and change once in ``block_size`` steps: only rows with other blocks are copied."""
        if self._blocks[group][row] == blocks:
            return
        self._blocks[group][row] = blocks
        host = self._host_tables[group][row]
        _put(host, blocks)
        self.block_tables[group][row].copy_(host, non_blocking=True)


def _put(target: Tensor, values: Sequence[int]) -> None:
    target.numpy()[: len(values)] = values
