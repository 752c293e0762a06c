"""From the scheduler's chunks to logits: builds the batch, runs both sides of the cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pss_engine.engine.adapters import StateAdapters
from pss_engine.engine.attention import PagedAttention, StepRows
from pss_engine.engine.cuda_graphs import num_compiled_kernels
from pss_engine.engine.fused_transformer import FusedTransformer
from pss_engine.engine.graph_runner import GraphRunner
from pss_engine.engine.scheduler import Chunk
from pss_engine.kv import SESSION, SHARED, KVCache
from pss_engine.metrics import EngineCounters
from pss_engine.models import ForwardBatch, LoadedModel
from pss_engine.models.transformer import Transformer
from pss_engine.state import StateSlots


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of one sequence in one layer group."""

    chunk: Chunk
    start: int
    end: int

    @property
    def token_ids(self) -> list[int]:
        sequence, draft = self.chunk.sequence, self.chunk.draft
        known = sequence.num_stored + self.chunk.num_pending
        return [*sequence.token_ids[self.start : min(self.end, known)], *draft[max(0, self.start - known) :]]


class ModelRunner:
    """Owns the cache tensors and the slots' view of a step; decides nothing.

    Args:
        graphs: replays the steps that it takes; None: all steps run eagerly.
        fused: runs the eager steps a side of the cut at a time; None: they run op by op.
    """

    def __init__(
        self,
        model: LoadedModel,
        cache: KVCache,
        slots: StateSlots,
        counters: EngineCounters,
        graphs: GraphRunner | None = None,
        fused: FusedTransformer | None = None,
    ) -> None:
        self._model, self._cache, self._slots, self._counters = model, cache, slots, counters
        self._fused = fused
        self._graphs = graphs
        self._num_compiled = num_compiled_kernels()

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [R, V], valid until the next run: for each chunk that completes, in order, those of its last pending
        token and of its draft."""
        slots = self._checked_slots(chunks)
        if self._graphs is not None and self._graphs.takes(chunks):
            logits = self._graphs.run(chunks, slots)
        else:
            logits = self._run_eagerly(chunks, slots)
            self._counters.num_eager_steps += 1
            self._counters.num_fused_steps += self._fused is not None
            if self._graphs is not None:
                self._counters.num_compiled_in_service = num_compiled_kernels() - self._num_compiled
        self._counters.num_steps += 1
        self._counters.num_tokens += sum(chunk.num_tokens for chunk in chunks)
        return logits

    def _run_eagerly(self, chunks: Sequence[Chunk], slots: Sequence[int]) -> Tensor:
        spans = [Span(c, c.sequence.num_stored, c.sequence.num_stored + c.num_tokens) for c in chunks]
        rows = self._rows(spans)
        hidden = self._hidden(spans, rows)
        batch = self._batch(rows.positions[:0], rows, self._attention(SESSION, spans, rows))
        batch = replace(batch, adapters=self._adapters(chunks, slots), logit_rows=self._logit_rows(chunks))
        return self._network.session(batch, hidden)

    @property
    def _network(self) -> Transformer | FusedTransformer:
        return self._fused or self._model.transformer

    def _hidden(self, spans: Sequence[Span], rows: StepRows) -> Tensor:
        """The hidden state at the cut [T, H]: run through the shared layers, or cached with their blocks."""
        fresh = [Span(s.chunk, max(s.start, s.chunk.sequence.num_shared), s.end) for s in spans]
        fresh = [span for span in fresh if span.start < span.end]
        cached = self._cache.hidden.flatten(0, 1)
        if fresh:
            num_fresh = sum(span.end - span.start for span in fresh)
            of_fresh = rows if num_fresh == len(rows.positions) else self._rows(fresh)
            attention = self._attention(SHARED, fresh, of_fresh)
            token_ids = torch.tensor([token for span in fresh for token in span.token_ids], device=self._model.device)
            hidden = self._network.shared(self._batch(token_ids, of_fresh, attention))
            cached[attention.kv_rows] = hidden
            self._counters.num_shared_tokens += num_fresh
            if of_fresh is rows:
                return hidden
        return cached[self._attention(SHARED, spans, rows).kv_rows]

    def _rows(self, spans: Sequence[Span]) -> StepRows:
        return StepRows([(span.start, span.end) for span in spans], self._model.device)

    def _batch(self, token_ids: Tensor, rows: StepRows, attention: PagedAttention) -> ForwardBatch:
        return ForwardBatch(token_ids, rows.positions, attention, adapters=None, logit_rows=rows.positions[:0])

    def _attention(self, group: str, spans: Sequence[Span], rows: StepRows) -> PagedAttention:
        config = self._model.config
        tables = [span.chunk.sequence.kv.tables[group] for span in spans]
        return PagedAttention.of(self._cache, tables, rows, config.head_dim**-0.5, config.windows)

    def _logit_rows(self, chunks: Sequence[Chunk]) -> Tensor:
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            end += chunk.num_tokens
            if chunk.completes:
                rows += range(end - 1 - len(chunk.draft), end)
        return torch.tensor(rows, dtype=torch.int64, device=self._model.device)

    def _checked_slots(self, chunks: Sequence[Chunk]) -> list[int]:
        """Of each chunk the slot of its state, which it still holds; -1 = base model."""
        for chunk in chunks:
            if chunk.sequence.slot is not None:
                self._slots.check_ref(chunk.sequence.slot)
                self._counters.num_state_tokens += chunk.num_tokens
        return [chunk.sequence.slot.slot if chunk.sequence.slot else -1 for chunk in chunks]

    def _adapters(self, chunks: Sequence[Chunk], slots: Sequence[int]) -> StateAdapters | None:
        if all(slot < 0 for slot in slots):
            return None
        slot_ids = [slot for slot, chunk in zip(slots, chunks, strict=True) for _ in range(chunk.num_tokens)]
        ids = torch.tensor(slot_ids, dtype=torch.int32, device=self._model.device)
        return StateAdapters(self._slots, ids, self._model.config, self._counters)
