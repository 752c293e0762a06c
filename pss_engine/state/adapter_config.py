"""The canonical LoRA configuration of a state: what of PEFT's ``adapter_config.json`` decides the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pss_engine.state.shape import TargetKey, lora_scaling, module_key

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class AdapterConfig:
    """Ranks, alphas and targets of a state, in one spelling.

    Two adapters with the same effect have the same AdapterConfig, whatever patterns their files used.

    Attributes:
        r, lora_alpha: the most common rank and alpha.
        use_rslora: scaling is ``alpha / sqrt(rank)`` instead of ``alpha / rank``.
        target_modules: module names if every layer has the same ones, else full module keys.
        layers_to_transform: the touched layers, ascending.
        rank_pattern, alpha_pattern: full module key -> value, only where it differs from ``r`` or ``lora_alpha``.
    """

    r: int
    lora_alpha: float
    use_rslora: bool
    target_modules: tuple[str, ...]
    layers_to_transform: tuple[int, ...]
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    @classmethod
    def from_targets(
        cls, ranks: Mapping[TargetKey, int], alphas: Mapping[TargetKey, float], use_rslora: bool = False
    ) -> AdapterConfig:
        """The configuration of pairs with these ranks and alphas; both mappings have the same, at least one, keys."""
        layers = tuple(sorted({layer for layer, _ in ranks}))
        modules = tuple(sorted({module for _, module in ranks}))
        full = len(ranks) == len(layers) * len(modules)
        r, alpha = _most_common(ranks.values()), float(_most_common(alphas.values()))
        keys = sorted(ranks)
        return cls(
            r=r,
            lora_alpha=alpha,
            use_rslora=use_rslora,
            target_modules=modules if full else tuple(sorted(module_key(*key) for key in keys)),
            layers_to_transform=layers,
            rank_pattern={module_key(*key): ranks[key] for key in keys if ranks[key] != r},
            alpha_pattern={module_key(*key): float(alphas[key]) for key in keys if alphas[key] != alpha},
        )

    def rank(self, layer: int, module: str) -> int:
        """Rank of one pair."""
        return self.rank_pattern.get(module_key(layer, module), self.r)

    def scaling(self, layer: int, module: str) -> float:
        """Factor on ``(x A^T) B^T`` of one pair."""
        alpha = self.alpha_pattern.get(module_key(layer, module), self.lora_alpha)
        return lora_scaling(alpha, self.rank(layer, module), self.use_rslora)

    def to_json(self) -> dict[str, Any]:
        """JSON values, the same for equal configurations; part of a state's digest."""
        return asdict(self)

    def to_peft(self, base_model: str | None) -> dict[str, Any]:
        """The content of ``adapter_config.json``, as PEFT writes and reads it."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "inference_mode": True,
            "r": self.r,
            "lora_alpha": _integral(self.lora_alpha),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "init_lora_weights": True,
            "use_rslora": self.use_rslora,
            "use_dora": False,
            "target_modules": list(self.target_modules),
            "layers_to_transform": list(self.layers_to_transform),
            "layers_pattern": None,
            "modules_to_save": None,
            "rank_pattern": dict(self.rank_pattern),
            "alpha_pattern": {key: _integral(alpha) for key, alpha in self.alpha_pattern.items()},
        }


def _most_common(values: Iterable[_Number]) -> _Number:
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _integral(value: float) -> int | float:
    """PEFT's alphas are whole numbers by convention; others are kept exactly."""
    return int(value) if value == int(value) else value
