"""From the scheduler's chunks to logits: builds the batch, runs both sides of the cut."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pss_engine.engine.adapters import StateAdapters
from pss_engine.engine.attention import PagedAttention
from pss_engine.engine.scheduler import Chunk
from pss_engine.kv import KVCache
from pss_engine.metrics import EngineCounters
from pss_engine.models import ForwardBatch, LoadedModel
from pss_engine.state import StateSlots


class ModelRunner:
    """Owns the cache tensors and the slots' view of a step; decides nothing."""

    def __init__(self, model: LoadedModel, cache: KVCache, slots: StateSlots, counters: EngineCounters) -> None:
        self._model, self._cache, self._slots, self._counters = model, cache, slots, counters

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [R, V] of the R chunks that complete their sequence, in order."""
        batch = self._batch(chunks)
        transformer = self._model.transformer
        logits = transformer.session(batch, transformer.shared(batch))
        self._counters.num_steps += 1
        self._counters.num_tokens += len(batch.token_ids)
        return logits

    def _batch(self, chunks: Sequence[Chunk]) -> ForwardBatch:
        config, device = self._model.config, self._model.device
        token_ids: list[int] = []
        positions: list[int] = []
        slot_ids: list[int] = []
        logit_rows: list[int] = []
        for chunk in chunks:
            sequence, start = chunk.sequence, chunk.sequence.num_stored
            token_ids += sequence.token_ids[start : start + chunk.num_tokens]
            positions += range(start, start + chunk.num_tokens)
            slot_ids += [sequence.slot.slot if sequence.slot else -1] * chunk.num_tokens
            if chunk.completes:
                logit_rows.append(len(token_ids) - 1)
        at = torch.tensor(positions, device=device)
        num_shared, scale = self._model.transformer.num_shared_layers, config.head_dim**-0.5
        return ForwardBatch(
            token_ids=torch.tensor(token_ids, device=device),
            positions=at,
            attention=PagedAttention.of(chunks, at, self._cache, num_shared, scale, config.windows),
            adapters=self._adapters(chunks, slot_ids),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        )

    def _adapters(self, chunks: Sequence[Chunk], slot_ids: list[int]) -> StateAdapters | None:
        refs = [chunk.sequence.slot for chunk in chunks if chunk.sequence.slot]
        if not refs:
            return None
        for ref in refs:
            self._slots.check_ref(ref)
        self._counters.num_state_tokens += sum(slot >= 0 for slot in slot_ids)
        ids = torch.tensor(slot_ids, dtype=torch.int32, device=self._model.device)
        return StateAdapters(self._slots, ids, self._model.config, self._counters)
