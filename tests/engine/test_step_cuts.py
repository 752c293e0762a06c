"""How tokens are cut into steps, drafts among them, changes no bit of any logit, on every instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pss_engine.engine.attention import PagedAttention, StepRows
from pss_engine.kv import SESSION, SHARED, KVCache, KVGeometry
from pss_engine.models import ForwardBatch, LoadedModel
from pss_engine.ops import lora_bgmv
from tests.ops.isas import each_isa, needs_cpp, running
from tests.real import real_model
from tests.tiny import FAMILIES, tiny_model

pytestmark = needs_cpp

BLOCK_SIZE = 4
RANKS = torch.tensor([1, 3, 8], dtype=torch.int32)
PROMPTS = [[5, 9, 11, 40, 7], [8] * 30, list(range(20, 101)), [3], list(range(60, 90)), [50, 4], [99, 98, 97], [30, 31]]
SLOTS = [0, -1, 1, -1, 2, -1, 0, 1]
# how a sequence may come: whole, one by one, in chunks, a prompt and then drafts; the last size is repeated
WHOLE = [1000]
CUTS = [WHOLE, [1], [7], [2, 1, 5, 3, 64], [20, 1, 1, 4, 2]]


class Factors:
    """Random factors of three states for every module of the session layers, as the network's adapters."""

    def __init__(self, model: LoadedModel, slots: Sequence[int]) -> None:
        self._config, self._slots = model.config, torch.tensor(slots, dtype=torch.int32)

    def __call__(self, layer: int, linear: str, x: Tensor, y: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(layer)
        for target in self._config.lora_targets_of[linear]:
            a = torch.randn(len(RANKS), 8, target.in_features, generator=generator) * 0.3
            b = torch.randn(len(RANKS), target.out_features, 8, generator=generator) * 0.3
            rows = y[:, target.offset : target.offset + target.out_features]
            lora_bgmv(rows, x, a, b, torch.ones(len(RANKS)), RANKS, self._slots)
        return y


class Rows:
    """Sequences in one cache, run as the engine runs them, any number of tokens at a time; all logits are kept."""

    def __init__(self, model: LoadedModel, prompts: Sequence[list[int]], slots: Sequence[int]) -> None:
        self._model, self._prompts, self._slots = model, prompts, slots
        config, num_shared = model.config, model.transformer.num_shared_layers
        layers = {SHARED: num_shared, SESSION: config.num_layers - num_shared}
        geometry = KVGeometry(layers, config.num_kv_heads, config.head_dim, 4, BLOCK_SIZE)
        counts = [-(-len(prompt) // BLOCK_SIZE) for prompt in prompts]
        self._cache = KVCache(geometry, sum(counts), config.hidden_size, torch.float32, model.device)
        for tensor in (*self._cache.k, *self._cache.v):
            tensor.fill_(torch.nan)
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(len(prompts))).split(counts)
        self._tables: list[Any] = [SimpleNamespace(blocks=o.tolist(), block_size=BLOCK_SIZE) for o in order]
        self._stored = [0] * len(prompts)
        self._logits: list[list[Tensor]] = [[] for _ in prompts]

    def run(self, cuts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Every step takes the next piece of each row that has tokens left; returns the logits [tokens, V] of each."""
        step = 0
        while any(left := [len(p) - s for p, s in zip(self._prompts, self._stored, strict=True)]):
            sizes = [cut[min(step, len(cut) - 1)] for cut in cuts]
            self._step([(row, min(n, size)) for row, (n, size) in enumerate(zip(left, sizes, strict=True)) if n])
            step += 1
        return [torch.cat(rows) for rows in self._logits]

    @torch.inference_mode()
    def _step(self, parts: list[tuple[int, int]]) -> None:
        bounds = [(self._stored[row], self._stored[row] + count) for row, count in parts]
        places = [(row, at) for (row, _), span in zip(parts, bounds, strict=True) for at in range(*span)]
        positions = torch.tensor([at for _, at in places])
        config, transformer = self._model.config, self._model.transformer
        attention = PagedAttention.of(
            self._cache,
            [self._tables[row] for row, _ in parts],
            StepRows(bounds, positions.device),
            config.head_dim**-0.5,
            config.windows,
        )
        slots = [self._slots[row] for row, _ in places]
        adapters = Factors(self._model, slots) if max(slots) >= 0 else None
        token_ids = torch.tensor([self._prompts[row][at] for row, at in places])
        batch = ForwardBatch(token_ids, positions, attention, adapters, torch.arange(len(places)))
        logits = transformer.session(batch, transformer.shared(batch)).split([count for _, count in parts])
        for (row, count), part in zip(parts, logits, strict=True):
            self._logits[row].append(part)
            self._stored[row] += count


def alone(model: LoadedModel, prompt: list[int], slot: int = -1) -> Tensor:
    """The logits of a sequence that has the engine to itself and comes in one piece."""
    return Rows(model, [prompt], [slot]).run([WHOLE])[0]


@each_isa
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_pieces_beside_each_other_are_rows_alone_in_one_piece(isa: str, family: str) -> None:
    model = tiny_model(family)
    with running(isa):
        for shift in range(len(CUTS)):
            cuts = [CUTS[(row + shift) % len(CUTS)] for row in range(len(PROMPTS))]
            found = Rows(model, PROMPTS, SLOTS).run(cuts)
            for prompt, slot, logits in zip(PROMPTS, SLOTS, found, strict=True):
                assert logits.isfinite().all()
                assert torch.equal(logits, alone(model, prompt, slot))


def test_states_beside_a_base_row_change_none_of_its_bits_though_they_change_their_own() -> None:
    model = tiny_model()
    base = Rows(model, PROMPTS, [-1] * 8).run([WHOLE] * 8)
    mixed = Rows(model, PROMPTS, SLOTS).run([WHOLE] * 8)
    assert [torch.equal(a, b) for a, b in zip(base, mixed, strict=True)] == [slot < 0 for slot in SLOTS]


def test_drafted_tokens_of_the_real_model_have_the_bits_of_one_by_one() -> None:
    model = real_model()
    prompts = [list(range(1000, 1024)), list(range(5000, 5009))]
    found = Rows(model, prompts, [-1, -1]).run([[20, 4], [5, 1, 3]])
    one_by_one = Rows(model, prompts, [-1, -1]).run([[20, 1], [5, 1]])
    assert all(torch.equal(a, b) for a, b in zip(found, one_by_one, strict=True))
