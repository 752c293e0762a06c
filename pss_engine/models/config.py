"""The geometry of a model: what the engine needs to know of a Hugging Face config, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("llama", "qwen2", "mistral", "phi3")


@dataclass(frozen=True)
class LoraTarget:
    """One module that a state may adapt.

    Attributes:
        name: the module's name in the checkpoint (``q_proj``, ``gate_up_proj``, ...).
        in_features, out_features: its shape.
        linear: the engine's linear that contains it (``qkv``, ``o``, ``gate_up``, ``down``).
        offset: first output row of the module inside that linear.
    """

    name: str
    in_features: int
    out_features: int
    linear: str
    offset: int


@dataclass(frozen=True)
class ModelConfig:
    """Geometry of one decoder-only model. Units: features, heads, layers, tokens."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    max_context: int
    rms_norm_eps: float
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_hf(cls, hf: PretrainedConfig) -> ModelConfig:
        """Read a transformers config of a supported family.

        Raises:
            ConfigError: the family, the activation or a layer kind is not supported.
        """
        family = hf.model_type
        if family not in FAMILIES:
            raise ConfigError(f"model family {family!r} is not supported; choices: {', '.join(FAMILIES)}")
        if hf.hidden_act not in ("silu", "swish"):
            raise ConfigError(f"activation {hf.hidden_act!r} is not supported; choices: silu")
        head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
        attention_bias = bool(getattr(hf, "attention_bias", False))
        return cls(
            family=family,
            vocab_size=hf.vocab_size,
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            num_layers=hf.num_hidden_layers,
            num_heads=hf.num_attention_heads,
            num_kv_heads=hf.num_key_value_heads or hf.num_attention_heads,
            head_dim=head_dim,
            rotary_dim=int(head_dim * rope_parameters(hf).get("partial_rotary_factor", 1.0)),
            max_context=_max_context(hf),
            rms_norm_eps=hf.rms_norm_eps,
            qkv_bias=attention_bias or family == "qwen2",
            o_bias=attention_bias and family == "llama",
            mlp_bias=bool(getattr(hf, "mlp_bias", False)),
            tie_word_embeddings=bool(hf.tie_word_embeddings),
            windows=_windows(hf),
            eos_token_ids=_ids(hf.eos_token_id),
        )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def fused_checkpoint(self) -> bool:
        """Whether the checkpoint itself stores q, k, v (and gate, up) as one matrix."""
        return self.family == "phi3"

    @cached_property
    def lora_targets(self) -> dict[str, LoraTarget]:
        """Modules that a state may adapt, by checkpoint name, in the order of the forward pass."""
        h, q, kv, i = self.hidden_size, self.q_size, self.kv_size, self.intermediate_size
        if self.fused_checkpoint:
            rows = [("qkv_proj", h, q + 2 * kv, "qkv", 0), ("o_proj", q, h, "o", 0)]
            rows += [("gate_up_proj", h, 2 * i, "gate_up", 0), ("down_proj", i, h, "down", 0)]
        else:
            rows = [("q_proj", h, q, "qkv", 0), ("k_proj", h, kv, "qkv", q), ("v_proj", h, kv, "qkv", q + kv)]
            rows += [("o_proj", q, h, "o", 0), ("gate_proj", h, i, "gate_up", 0), ("up_proj", h, i, "gate_up", i)]
            rows += [("down_proj", i, h, "down", 0)]
        return {row[0]: LoraTarget(*row) for row in rows}

    @property
    def lora_shapes(self) -> dict[str, tuple[int, int]]:
        """(in_features, out_features) of each target, as the states' memory takes them."""
        return {name: (target.in_features, target.out_features) for name, target in self.lora_targets.items()}

    @cached_property
    def lora_targets_of(self) -> dict[str, tuple[LoraTarget, ...]]:
        """The same targets, grouped by the engine's linear that contains them."""
        grouped: dict[str, list[LoraTarget]] = {}
        for target in self.lora_targets.values():
            grouped.setdefault(target.linear, []).append(target)
        return {linear: tuple(targets) for linear, targets in grouped.items()}


def rope_parameters(hf: PretrainedConfig) -> dict[str, Any]:
    """The rope settings of a config, whichever transformers generation wrote it."""
    parameters = getattr(hf, "rope_parameters", None)
    if parameters:
        return dict(parameters)
    scaling = dict(getattr(hf, "rope_scaling", None) or {})
    scaling.setdefault("rope_theta", getattr(hf, "rope_theta", 10000.0))
    scaling.setdefault("rope_type", scaling.pop("type", "default"))
    scaling.setdefault("partial_rotary_factor", getattr(hf, "partial_rotary_factor", None) or 1.0)
    return scaling


def _max_context(hf: PretrainedConfig) -> int:
    # LongRoPE switches to other frequencies past the original context; the engine serves one set per model.
    original = rope_parameters(hf).get("original_max_position_embeddings")
    if original and rope_parameters(hf).get("rope_type") == "longrope":
        return min(int(original), hf.max_position_embeddings)
    return int(hf.max_position_embeddings)


def _windows(hf: PretrainedConfig) -> tuple[int | None, ...]:
    window = getattr(hf, "sliding_window", None)
    kinds = getattr(hf, "layer_types", None)
    if not kinds:
        return (window,) * hf.num_hidden_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigError(
            f"layer kinds {sorted(unknown)} are not supported; choices: full_attention, sliding_attention"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
