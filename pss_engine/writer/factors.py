"""The trainable LoRAs of a batch of sessions, stacked: one row a session, so that norms and updates are its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from pss_engine.models import ModelConfig
from pss_engine.state.precision import initial_a

Pair = tuple[Tensor, Tensor]
Key = tuple[int, str]
"""(layer, linear of the engine): ``qkv``, ``o``, ``gate_up`` or ``down``."""


@dataclass(frozen=True)
class LinearFactors:
    """The factors of one fused linear in all slots; views of the stack.

    Attributes:
        a: [S, M R, H_in], lora_A of its M modules one under another.
        b: [S, H_out of the module, R] of each module.
        outputs: where each module's output lies in that of the linear.
        ranks: where each module's rank lies in ``a``.
    """

    a: Tensor
    b: tuple[Tensor, ...]
    outputs: tuple[slice, ...]
    ranks: tuple[slice, ...]


class FactorStack:
    """lora_a and lora_b in each of S slots, float32, with their gradients; a slot begins as PEFT's do, from its seed.

    Attributes:
        values, grads: [S, N] float32.
    """

    def __init__(
        self, config: ModelConfig, layers: range, rank: int, scaling: float, num_slots: int, device: torch.device
    ) -> None:
        self._config, self.layers, self.rank, self.scaling = config, layers, rank, scaling
        sizes = [
            rank * features
            for _ in layers
            for targets in config.lora_targets_of.values()
            for features in [targets[0].in_features * len(targets), *(t.out_features for t in targets)]
        ]
        self._offsets = list(accumulate(sizes, initial=0))
        self.values = torch.zeros(num_slots, self._offsets[-1], device=device)
        self.grads = torch.zeros_like(self.values)
        self.of, self.grads_of = self.views(self.values), self.views(self.grads)

    @property
    def num_factors(self) -> int:
        """N: trainable numbers of one session."""
        return self._offsets[-1]

    def views(self, rows: Tensor) -> dict[Key, LinearFactors]:
        """Rows [S, N], of this stack or laid out like it, by (layer, linear)."""
        found: dict[Key, LinearFactors] = {}
        offsets = iter(self._offsets)
        for layer in self.layers:
            for linear, targets in self._config.lora_targets_of.items():
                shapes = [(len(targets) * self.rank, targets[0].in_features)]
                shapes += [(target.out_features, self.rank) for target in targets]
                a, *b = [
                    rows[:, (at := next(offsets)) : at + shape[0] * shape[1]].unflatten(1, shape) for shape in shapes
                ]
                outputs = tuple(slice(t.offset, t.offset + t.out_features) for t in targets)
                ranks = tuple(slice(m * self.rank, (m + 1) * self.rank) for m in range(len(targets)))
                found[layer, linear] = LinearFactors(a, tuple(b), outputs, ranks)
        return found

    def reset(self, slot: int, seed: int) -> None:
        """Initial factors of a new session."""
        self.values[slot].zero_()
        pairs = self.pairs(slot)
        for key, a in initial_a({key: (a.shape[0], a.shape[1]) for key, (a, _) in pairs.items()}, seed).items():
            pairs[key][0].copy_(a)

    def load(self, slot: int, pairs: Mapping[tuple[int, str], Pair]) -> None:
        """Take the factors of a state, to go on from them; all of its modules, in this rank."""
        for key, (a, b) in self.pairs(slot).items():
            a.copy_(pairs[key][0])
            b.copy_(pairs[key][1])

    def pairs(self, slot: int, rows: Tensor | None = None) -> dict[tuple[int, str], Pair]:
        """(layer, module) -> lora_A [R, H_in], lora_B [H_out, R] of one slot; views, in PEFT's order."""
        views = self.of if rows is None else self.views(rows)
        return {
            (layer, target.name): (factors.a[slot, factors.ranks[m]], factors.b[m][slot])
            for layer in self.layers
            for linear, targets in self._config.lora_targets_of.items()
            for m, (target, factors) in enumerate((t, views[layer, linear]) for t in targets)
        }

    def half(self, which: int) -> Tensor:
        """[N] float32, 1 for the factors of the first (0) or second (1) half of every rank."""
        mask = torch.zeros(1, self.num_factors, device=self.values.device)
        middle = self.rank // 2
        ranks = slice(None, middle) if which == 0 else slice(middle, None)
        for a, b in self.pairs(0, mask).values():
            a[ranks], b[:, ranks] = 1.0, 1.0
        return mask[0]
