"""Two phases of updates above the cut, on activations of the shared layers that are computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.models import DenseAttention, ForwardBatch, LoadedModel
from pss_engine.writer.config import WriterConfig
from pss_engine.writer.factors import TrainableFactors

OnStep = Callable[[str, float], None]


@dataclass(frozen=True)
class Example:
    """Packed segments of tokens whose continuation is learned, with their hidden state at the cut.

    Attributes:
        hidden: [T, H], the output of the shared layers; no gradient.
        labels: [R] int64, the tokens that follow ``batch.logit_rows``.
        label_lens: how many of the labels belong to each segment.
    """

    batch: ForwardBatch
    hidden: Tensor
    labels: Tensor
    label_lens: Sequence[int]


class Trainer:
    """Learns the factors of one session. The base model is frozen and is run below the cut without gradients."""

    def __init__(self, model: LoadedModel, config: WriterConfig, factors: TrainableFactors) -> None:
        self._model, self._config, self._factors = model, config, factors
        self._transformer = model.transformer.with_dense_session_layers()

    def language_model(self, chunks: Sequence[list[int]], on_step: OnStep) -> None:
        """Phase 1: next-token loss over the chunks in order, ``max(min_lm_steps, chunks)`` updates."""
        optimizer = self._optimizer(self._config.lm_learning_rate)
        num_steps = max(self._config.min_lm_steps, len(chunks))
        seen: dict[int, Example] = {}
        for step in range(num_steps):
            at = step % len(chunks)
            example = seen.get(at) or self._example([(chunks[at][:1], chunks[at][1:])])
            if len(chunks) < num_steps:
                seen[at] = example
            loss = self._losses(example)[0]
            self._update(optimizer, loss)
            on_step("history", loss.item())

    def readout(self, prompt: list[int], positive: list[int], negative: list[int], on_step: OnStep) -> None:
        """Phase 2: ``l(z+) + max(0, margin + l(z+) - l(z-))`` (PSS, equation 4); without z- only ``l(z+)``."""
        optimizer = self._optimizer(self._config.readout_learning_rate)
        example = self._example([(prompt, target) for target in (positive, negative) if target])
        for _ in range(self._config.readout_steps):
            losses = self._losses(example)
            loss = losses[0]
            if negative:
                loss = loss + F.relu(self._config.margin + losses[0] - losses[1])
            self._update(optimizer, loss)
            on_step("readout", losses[0].item())

    def _example(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Example:
        """One segment per (given, learned) pair; the last learned token is a label only."""
        device = self._model.device
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        lens: list[int] = []
        for given, learned in pairs:
            segment = [*given, *learned[:-1]]
            rows += range(len(ids) + len(given) - 1, len(ids) + len(segment))
            ids, positions = ids + segment, [*positions, *range(len(segment))]
            lens.append(len(segment))
        config = self._model.config
        batch = ForwardBatch(
            token_ids=torch.tensor(ids, device=device),
            positions=torch.tensor(positions, device=device),
            attention=DenseAttention(lens, config.head_dim**-0.5, config.windows),
            adapters=self._factors,
            logit_rows=torch.tensor(rows, device=device),
        )
        with torch.no_grad():
            hidden = self._transformer.shared(batch)
        labels = torch.tensor([token for _, learned in pairs for token in learned], device=device)
        return Example(batch, hidden, labels, [len(learned) for _, learned in pairs])

    def _losses(self, example: Example) -> list[Tensor]:
        """Mean token negative log likelihood of each segment, in nats."""
        logits = self._transformer.session(example.batch, example.hidden)
        tokens = F.cross_entropy(logits.float(), example.labels, reduction="none")
        return [part.mean() for part in tokens.split(list(example.label_lens))]

    def _optimizer(self, learning_rate: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(list(self._factors.parameters()), lr=learning_rate, weight_decay=0.0, fused=True)

    def _update(self, optimizer: torch.optim.AdamW, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self._factors.parameters()), self._config.max_grad_norm)
        optimizer.step()
