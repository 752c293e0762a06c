"""Reading an ``adapter_config.json`` that anybody may have written: what it declares, or why it cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pss_engine.errors import StateFormatError
from pss_engine.state.patterns import NamePattern

ALL_LINEAR = "all-linear"
MAX_ALPHA = 1e9

# Fields that change what the adapter computes, beyond low-rank factors on linear layers, when they are set to anything.
_UNSUPPORTED = (
    "use_dora", "fan_in_fan_out", "use_qalora", "layer_replication", "alora_invocation_tokens", "target_parameters",
    "trainable_token_indices", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config",
)  # fmt: skip
# Initialisations that rewrite the base weights, so that the factors are right only on top of those.
_BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class PeftConfig:
    """A checked ``adapter_config.json``.

    ``key`` below is a module's full name as PEFT sees it, ``model.layers.3.self_attn.q_proj``.
    """

    r: int
    lora_alpha: float
    use_rslora: bool
    base_model: str | None
    modules_to_save: tuple[str, ...]
    target_modules: tuple[str, ...] | NamePattern
    exclude_modules: tuple[str, ...] | NamePattern
    layers: frozenset[int] | None
    layers_patterns: tuple[NamePattern, ...]
    rank_patterns: tuple[tuple[NamePattern, int], ...]
    alpha_patterns: tuple[tuple[NamePattern, float], ...]

    def declares(self, key: str) -> bool:
        """Whether PEFT would adapt this module: its rules for targets, exclusions and layers."""
        if _selects(self.exclude_modules, key):
            return False
        if isinstance(self.target_modules, NamePattern):
            return self.target_modules.matches(key)
        if self.target_modules == (ALL_LINEAR,):
            return self._has_layer(key)
        return key in self.target_modules or (_selects(self.target_modules, key) and self._has_layer(key))

    def rank(self, key: str) -> int:
        """Rank of a module: the first matching rank_pattern, or r."""
        return next((rank for pattern, rank in self.rank_patterns if pattern.matches_suffix(key)), self.r)

    def alpha(self, key: str) -> float:
        """Alpha of a module: the first matching alpha_pattern, or lora_alpha."""
        return next((alpha for pattern, alpha in self.alpha_patterns if pattern.matches_suffix(key)), self.lora_alpha)

    def _has_layer(self, key: str) -> bool:
        if self.layers is None:
            return True
        parts = key.split(".")
        at = next(at for at, part in enumerate(parts) if part.isdigit())
        head = ".".join(parts[:at])
        if self.layers_patterns and not any(pattern.matches_suffix(head) for pattern in self.layers_patterns):
            return False
        return int(parts[at]) in self.layers


def parse_peft_config(raw: Mapping[str, Any], where: str) -> PeftConfig:
    """Check the fields of an ``adapter_config.json``.

    Args:
        raw: the JSON object.
        where: the file, the start of every message.

    Raises:
        StateFormatError: another PEFT method, a feature that is not supported, or a field of the wrong kind.
    """
    if raw.get("peft_type") != "LORA":
        raise StateFormatError(f"{where}: peft_type is {raw.get('peft_type')!r:.40}, LORA is needed")
    for name in _UNSUPPORTED:
        if raw.get(name):
            raise StateFormatError(f"{where}: {name} is {raw[name]!r:.60}; adapters that need it are not supported")
    init = raw.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_BASE_CHANGING_INITS):
        raise StateFormatError(
            f"{where}: init_lora_weights is {init!r:.40}, which changes the base weights; convert to plain LoRA first"
        )
    targets = raw.get("target_modules")
    if targets is None or targets == []:
        raise StateFormatError(f"{where}: target_modules is {targets!r}; name the modules")
    base = raw.get("base_model_name_or_path")
    if base is not None and not isinstance(base, str):
        raise StateFormatError(f"{where}: base_model_name_or_path is {base!r:.40}, a string or null is needed")
    return PeftConfig(
        r=_rank(raw.get("r"), f"{where}: r"),
        lora_alpha=_alpha(raw.get("lora_alpha"), f"{where}: lora_alpha"),
        use_rslora=_boolean(raw.get("use_rslora"), f"{where}: use_rslora"),
        base_model=base or None,
        modules_to_save=_names(raw.get("modules_to_save"), f"{where}: modules_to_save"),
        target_modules=_targets(targets, f"{where}: target_modules"),
        exclude_modules=_targets(raw.get("exclude_modules"), f"{where}: exclude_modules"),
        layers=_layers(raw.get("layers_to_transform"), f"{where}: layers_to_transform"),
        layers_patterns=tuple(
            NamePattern(name, f"{where}: layers_pattern")
            for name in _names(raw.get("layers_pattern"), f"{where}: layers_pattern")
        ),
        rank_patterns=tuple(
            (NamePattern(name, f"{where}: rank_pattern"), _rank(value, f"{where}: rank_pattern[{name!r:.80}]"))
            for name, value in _mapping(raw.get("rank_pattern"), f"{where}: rank_pattern").items()
        ),
        alpha_patterns=tuple(
            (NamePattern(name, f"{where}: alpha_pattern"), _alpha(value, f"{where}: alpha_pattern[{name!r:.80}]"))
            for name, value in _mapping(raw.get("alpha_pattern"), f"{where}: alpha_pattern").items()
        ),
    )


def _selects(names: tuple[str, ...] | NamePattern, key: str) -> bool:
    if isinstance(names, NamePattern):
        return names.matches(key)
    return any(key == name or key.endswith(f".{name}") for name in names)


def _targets(value: object, where: str) -> tuple[str, ...] | NamePattern:
    if isinstance(value, str) and value:
        return (ALL_LINEAR,) if value.lower() == ALL_LINEAR else NamePattern(value, where)
    return _names(value, where)


def _names(value: object, where: str) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    items: Sequence[object] = [value] if isinstance(value, str) else value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str) or not item:
            raise StateFormatError(f"{where} holds {item!r:.40}, a name is needed")
    return tuple(str(item) for item in items)


def _layers(value: object, where: str) -> frozenset[int] | None:
    if value is None or value == []:
        return None
    items = value if isinstance(value, list) else [value]
    for item in items:
        if type(item) is not int or item < 0:
            raise StateFormatError(f"{where} holds {item!r:.40}, a layer index of 0 or more is needed")
    return frozenset(items)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise StateFormatError(f"{where} is {value!r:.40}, an object is needed")
    return value


def _rank(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise StateFormatError(f"{where} is {value!r:.40}, an integer of 1 or more is needed")
    return value


def _alpha(value: object, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_ALPHA:
        return float(value)
    raise StateFormatError(f"{where} is {value!r:.40}, a number within -{MAX_ALPHA:g}..{MAX_ALPHA:g} is needed")


def _boolean(value: object, where: str) -> bool:
    if value not in (None, True, False):
        raise StateFormatError(f"{where} is {value!r:.40}, true or false is needed")
    return bool(value)
