"""Where a state may touch the model: layers, module names, shapes, and the scaling of a low-rank update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pss_engine.errors import ConfigError, StateFormatError

TargetKey = tuple[int, str]
"""(layer index, module name), for example ``(28, "q_proj")``."""

MODULE_PARENTS: dict[str, str] = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "qkv_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
    "gate_up_proj": "mlp",
}
"""Module names of the supported families and the submodule of a decoder layer that holds each."""
FORWARD_ORDER = (
    "qkv_proj",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_up_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
"""The same in the order in which a layer computes them."""


def module_key(layer: int, module: str, prefix: str = "model.") -> str:
    """Full name of a linear layer as PEFT sees it: ``model.layers.28.self_attn.q_proj``."""
    return f"{prefix}layers.{layer}.{MODULE_PARENTS[module]}.{module}"


def lora_scaling(alpha: float, rank: int, use_rslora: bool) -> float:
    """PEFT's scaling: ``alpha / rank``, or ``alpha / sqrt(rank)`` with rank-stabilised LoRA."""
    return alpha / math.sqrt(rank) if use_rslora else alpha / rank


@dataclass(frozen=True)
class StateShape:
    """What a state has to fit.

    Attributes:
        num_layers: decoder layers of the model; valid layer indices are ``0 .. num_layers - 1``.
        targets: module name -> (in_features, out_features), the same in every layer.
        first_session_layer: the cut; a state may touch this layer and those above it only.

    Raises:
        ConfigError: a module name that no supported family has, or a cut outside the model.
    """

    num_layers: int
    targets: Mapping[str, tuple[int, int]]
    first_session_layer: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.targets) - set(MODULE_PARENTS))
        if unknown or not self.targets:
            raise ConfigError(f"state targets: {unknown or 'none given'}; choices: {', '.join(MODULE_PARENTS)}")
        if not 0 <= self.first_session_layer < self.num_layers:
            raise ConfigError(
                f"first_session_layer={self.first_session_layer}: must be in 0..{self.num_layers - 1} for a model of "
                f"{self.num_layers} layers"
            )

    @property
    def session_layers(self) -> range:
        """The layers a state may touch."""
        return range(self.first_session_layer, self.num_layers)

    def check_factors(self, where: str, key: TargetKey, a_shape: Sequence[int], b_shape: Sequence[int]) -> None:
        """Raise StateFormatError unless A ``[r, in]`` and B ``[out, r]`` fit this model.

        Args:
            where: what is being checked, the start of the message.
            key: (layer, module) of the pair.
            a_shape, b_shape: shapes of the two factors.
        """
        layer, module = key
        if module not in self.targets:
            raise StateFormatError(f"{where}: module {module} is not in this model; choices: {', '.join(self.targets)}")
        if layer not in self.session_layers:
            raise StateFormatError(
                f"{where}: layer {layer} is outside the session layers "
                f"{self.first_session_layer}..{self.num_layers - 1} of this model of {self.num_layers} layers"
            )
        in_features, out_features = self.targets[module]
        for side, found, wanted in (
            ("A in_features", a_shape[1], in_features),
            ("B out_features", b_shape[0], out_features),
        ):
            if found != wanted:
                raise StateFormatError(f"{where}: lora_{side} is {found}, the model's {module} has {wanted}")
