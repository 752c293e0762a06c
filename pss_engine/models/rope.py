"""Rotary position embedding: frequencies once per model, cosines and sines once per forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.models.config import rope_parameters

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TABLE_BLOCK = 128  # positions; torch computes a block on one thread
SERVED = ("default", "linear", "llama3", "yarn", "longrope")


class RotaryEmbedding:
    """cos, sin [T, rotary_dim / 2] float32 of ``position * inv_freq``, times the attention factor of the scaling."""

    def __init__(self, inv_freq: Tensor, attention_factor: float = 1.0) -> None:
        self.inv_freq, self.attention_factor = inv_freq, attention_factor
        self._table = (inv_freq.new_empty(0, len(inv_freq)), inv_freq.new_empty(0, len(inv_freq)))

    @classmethod
    def from_hf(cls, hf: PretrainedConfig, rotary_dim: int, device: torch.device) -> RotaryEmbedding:
        """Frequencies of a config; scalings other than the plain one come from transformers.

        Raises:
            ConfigError: the scaling depends on the running length, so that rows of a batch would not be independent.
        """
        parameters = rope_parameters(hf)
        kind = parameters.get("rope_type", "default")
        if kind not in SERVED:
            raise ConfigError(f"rope type {kind!r} is not supported; choices: {', '.join(SERVED)}")
        if kind == "default":
            steps = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
            return cls((1.0 / parameters["rope_theta"] ** steps).to(device))
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](hf, device)
        return cls(inv_freq.float().to(device), float(factor))

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T] int64. On the CPU a position's bits do not depend on the other positions."""
        if positions.device.type != "cpu":
            return self._angles(positions)
        longest = int(positions.max()) if positions.numel() else 0
        if longest >= len(self._table[0]):
            self._extend(longest)
        cos, sin = self._table
        return cos[positions], sin[positions]

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[:, None] * self.inv_freq
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor

    @torch.inference_mode(False)
    def _extend(self, longest: int) -> None:
        # torch computes the last elements of a tensor by another function than the rest: whole blocks, always the same
        blocks = range(len(self._table[0]), longest + 1, TABLE_BLOCK)
        parts = [self._table, *(self._angles(torch.arange(at, at + TABLE_BLOCK)) for at in blocks)]
        cos, sin = zip(*parts, strict=True)
        self._table = (torch.cat(cos), torch.cat(sin))
