"""The trainable LoRA of one session, as the network's adapters while it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.models import ModelConfig


class TrainableFactors:
    """lora_a [R, H_in] ~ U(-1/sqrt(H_in), 1/sqrt(H_in)), lora_b [H_out, R] = 0, float32, per session layer and module.

    The initial values are PEFT's, drawn in the order of layers, then modules, from one seeded generator.
    """

    def __init__(
        self, config: ModelConfig, layers: range, rank: int, scaling: float, seed: int, device: torch.device
    ) -> None:
        self._config, self.scaling = config, scaling
        generator = torch.Generator().manual_seed(seed)
        self.pairs: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for layer in layers:
            for target in config.lora_targets.values():
                bound = 1.0 / math.sqrt(target.in_features)
                a = torch.empty(rank, target.in_features).uniform_(-bound, bound, generator=generator).to(device)
                b = torch.zeros(target.out_features, rank, device=device)
                self.pairs[layer, target.name] = (a.requires_grad_(), b.requires_grad_())

    def parameters(self) -> Iterator[Tensor]:
        for pair in self.pairs.values():
            yield from pair

    def __call__(self, layer: int, linear: str, x: Tensor, y: Tensor) -> Tensor:
        """y + scaling (x A^T) B^T, each module in its slice of the fused output; differentiable."""
        deltas = []
        for target in self._config.lora_targets_of[linear]:
            a, b = self.pairs[layer, target.name]
            deltas.append(F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype)))
        return y + self.scaling * (deltas[0] if len(deltas) == 1 else torch.cat(deltas, dim=-1))
