"""Decode steps from graphs: captured once for each size of batch, with and without states, then only replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pss_engine.engine.attention import PagedAttention
from pss_engine.engine.cuda_graphs import Graphs
from pss_engine.engine.decode_buffers import DecodeBuffers
from pss_engine.engine.scheduler import Chunk
from pss_engine.kv import SESSION, SHARED, KVCache
from pss_engine.metrics import EngineCounters
from pss_engine.models import ForwardBatch, LoadedModel, ModelConfig
from pss_engine.ops.lora import lora_slices
from pss_engine.state import StateSlots
from pss_engine.state.rows import TargetSlots
from pss_engine.state.shape import TargetKey


def batch_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, ... and ``max_num_seqs``: what is captured; a batch runs in the least of them that holds it."""
    sizes = [1]
    while sizes[-1] < max_num_seqs:
        sizes.append(min(2 * sizes[-1], max_num_seqs))
    return sizes


@dataclass(frozen=True)
class CapturedAdapters:
    """States of a captured step: every target is launched, whatever is resident; a slot that it is not in has rank 0.

    Attributes:
        views: by target, at addresses that never change.
        slot_ids: [T] int32, -1 = base model.
    """

    views: Mapping[TargetKey, TargetSlots]
    slot_ids: Tensor
    config: ModelConfig

    def __call__(self, layer: int, linear: str, x: Tensor, y: Tensor) -> Tensor:
        targets = self.config.lora_targets_of[linear]
        lora_slices(y, x, [self.views[layer, target.name].at(target.offset) for target in targets], self.slot_ids)
        return y


class GraphRunner:
    """Captures every size of batch when it is made; afterwards nothing is captured.

    Args:
        graphs: how a step is captured.
        cache: its last block is of no pool: rows that pad a batch live there.
        max_num_seqs: rows of the largest batch.
        max_context: tokens of the longest row.
    """

    def __init__(
        self,
        graphs: Graphs,
        model: LoadedModel,
        cache: KVCache,
        slots: StateSlots,
        counters: EngineCounters,
        max_num_seqs: int,
        max_context: int,
    ) -> None:
        self._model, self._cache, self._counters = model, cache, counters
        self._views = slots.views
        self.sizes = batch_sizes(max_num_seqs)
        num_blocks, block_size = cache.hidden.shape[:2]
        max_blocks = -(-max_context // block_size)
        for memory in (*cache.k, *cache.v, cache.hidden):
            memory[-1].zero_()
        self._buffers = DecodeBuffers(max_num_seqs, max_blocks, block_size, num_blocks - 1, model.device)
        self._replay: dict[tuple[int, bool], Callable[[], Tensor]] = {}
        self._capture_all(graphs)

    def takes(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a step can be replayed: all rows decode one token that neither side of the cut has cached."""
        return all(c.num_tokens == 1 and c.completes and c.sequence.num_shared <= c.sequence.num_stored for c in chunks)

    def run(self, chunks: Sequence[Chunk], slots: Sequence[int]) -> Tensor:
        """Logits [B, V] of the rows of a step that it takes, valid until the next run; slots [B], -1 = base model."""
        size = next(size for size in self.sizes if size >= len(chunks))
        with_states = any(slot >= 0 for slot in slots)
        self._buffers.fill(chunks, slots, size)
        logits = self._replay[size, with_states]()
        self._counters.num_graph_replays += 1
        self._counters.num_shared_tokens += len(chunks)
        self._counters.num_adapter_calls += len(self._views) if with_states else 0
        return logits[: len(chunks)]

    @torch.inference_mode()
    def _capture_all(self, graphs: Graphs) -> None:
        # the largest first: the smaller ones find their memory in the pool
        for size in reversed(self.sizes):
            for with_states in (False, True):
                self._replay[size, with_states] = graphs.capture(partial(self._forward, size, with_states))
                self._counters.num_graph_captures += 1

    def _forward(self, size: int, with_states: bool) -> Tensor:
        buffers, transformer, config = self._buffers, self._model.transformer, self._model.config
        token_ids, positions, rows = buffers.token_ids[:size], buffers.positions[:size], buffers.rows[:size]
        attention = {group: self._attention(group, size) for group in (SHARED, SESSION)}
        hidden = transformer.shared(ForwardBatch(token_ids, positions, attention[SHARED], None, rows))
        self._cache.hidden.flatten(0, 1)[attention[SHARED].kv_rows] = hidden
        adapters = CapturedAdapters(self._views, buffers.slot_ids[:size], config) if with_states else None
        return transformer.session(ForwardBatch(token_ids, positions, attention[SESSION], adapters, rows), hidden)

    def _attention(self, group: str, size: int) -> PagedAttention:
        buffers, config = self._buffers, self._model.config
        return PagedAttention(
            self._cache,
            buffers.block_tables[group][:size],
            buffers.kv_rows[group][:size],
            buffers.query_starts[: size + 1],
            buffers.context_lens[:size],
            config.head_dim**-0.5,
            config.windows,
        )
