"""What each layer of a model keeps of a sequence, read from its config alone: no weights, and nothing guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pss_engine.errors import ConfigError
from pss_engine.kv.geometry import element_bytes

FULL, SLIDING, LATENT, DELTA, MAMBA, CONV, NOTHING = "full", "sliding", "latent", "delta", "mamba", "conv", "nothing"
RECURRENT_DTYPE = "float32"
"""Of recurrent states where the config names none: implementations accumulate them in it."""

_KINDS = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": DELTA,
    "mamba": MAMBA,
    "conv": CONV,
    "moe": NOTHING,
    "mlp": NOTHING,
}


@dataclass(frozen=True)
class LayerKV:
    """One layer.

    Attributes:
        kind: ``full`` or ``sliding`` attention (2 * kv heads * head dim elements a token), ``latent`` (MLA: the
            compressed row and its rotary part, once for all heads), ``delta`` (gated delta rule), ``mamba``, ``conv``,
            or ``nothing`` (no memory of its own: an MLP, or attention that reads the KV of a layer before it).
        token_elements: elements of one token; 0 where nothing grows.
        window: tokens that are kept at most; None = all.
        recurrent_elements, conv_elements: of one sequence, whatever its length. A convolution of width k needs the
            last k - 1 inputs.
    """

    kind: str
    token_elements: int = 0
    window: int | None = None
    recurrent_elements: int = 0
    conv_elements: int = 0

    def num_kept(self, num_tokens: int) -> int:
        """Of so many tokens, those whose elements are kept."""
        return num_tokens if self.window is None else min(num_tokens, self.window)


@dataclass(frozen=True)
class ModelKV:
    """All layers of a model, first to last, and the dtypes of what does not grow."""

    layers: tuple[LayerKV, ...]
    recurrent_dtype: str
    conv_dtype: str

    @classmethod
    def of(cls, config: Any) -> ModelKV:
        """Read a text model's config: a transformers config, or any object with its attributes.

        Raises:
            ConfigError: a field is missing, or a layer kind is not known here; the message names it.
        """
        recurrent = getattr(config, "mamba_ssm_dtype", None) or getattr(config, "mamba_ssm_cache_dtype", None)
        return cls(tuple(_layers(config)), _name(recurrent) or RECURRENT_DTYPE, model_dtype(config))

    def token_bytes(self, dtype: str, layers: Sequence[LayerKV] | None = None) -> int:
        """Bytes that one more token adds inside the windows: over ``layers``, or all of them."""
        chosen = self.layers if layers is None else layers
        return sum(layer.token_elements for layer in chosen) * element_bytes(dtype)

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of recurrent and convolution states of one sequence."""
        recurrent = sum(layer.recurrent_elements for layer in self.layers) * element_bytes(self.recurrent_dtype)
        return recurrent + sum(layer.conv_elements for layer in self.layers) * element_bytes(self.conv_dtype)


def model_dtype(config: Any) -> str:
    """What a config says its activations are; ``bfloat16`` where it says nothing that can be stored as it is."""
    # the old name of the field is in files; on a transformers config it is an alias that warns
    name = _name(config.dtype if hasattr(config, "dtype") else getattr(config, "torch_dtype", None))
    return name if name in ("float32", "bfloat16", "float16") else "bfloat16"


def _layers(config: Any) -> list[LayerKV]:
    kinds = _kinds(config)
    # the last layers of some models read the KV of an earlier one
    num_own = len(kinds) - (getattr(config, "num_kv_shared_layers", None) or 0)
    return [_layer(config, kind) if at < num_own else LayerKV(NOTHING) for at, kind in enumerate(kinds)]


def _kinds(config: Any) -> list[str]:
    names = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if names is None:
        num_layers = _field(config, "num_hidden_layers")
        windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return [SLIDING if windowed else FULL] * num_layers
    if unknown := sorted(set(names) - set(_KINDS)):
        raise ConfigError(f"layer kinds {unknown} are not known; choices: {', '.join(_KINDS)}")
    return [_KINDS[name] for name in names]


def _layer(config: Any, kind: str) -> LayerKV:
    if kind in (FULL, SLIDING):
        return _attention(config, kind)
    if kind in (DELTA, MAMBA):
        return _recurrent(config)
    if kind == CONV:
        return LayerKV(CONV, conv_elements=_field(config, "hidden_size") * (_field(config, "conv_L_cache") - 1))
    return LayerKV(NOTHING)


def _attention(config: Any, kind: str) -> LayerKV:
    if rank := getattr(config, "kv_lora_rank", None):
        return LayerKV(LATENT, token_elements=rank + _field(config, "qk_rope_head_dim"))
    heads = _field(config, "num_attention_heads")
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if getattr(config, "multi_query", False):
        kv_heads = 1
    head_dim = getattr(config, "head_dim", None) or _field(config, "hidden_size") // heads
    window = None
    if kind == SLIDING:
        window = getattr(config, "sliding_window", None) or _field(config, "attention_chunk_size")
    return LayerKV(kind, token_elements=2 * kv_heads * head_dim, window=window)


def _recurrent(config: Any) -> LayerKV:
    if getattr(config, "linear_num_value_heads", None):
        key = _field(config, "linear_num_key_heads") * _field(config, "linear_key_head_dim")
        heads, dim = config.linear_num_value_heads, _field(config, "linear_value_head_dim")
        state = heads * config.linear_key_head_dim * dim
        channels = 2 * key + heads * dim
        return LayerKV(DELTA, 0, None, state, channels * (_field(config, "linear_conv_kernel_dim") - 1))
    heads = _either(config, "mamba_n_heads", "mamba_num_heads")
    dim = _either(config, "mamba_d_head", "mamba_head_dim")
    size, groups = _either(config, "mamba_d_state", "ssm_state_size"), _either(config, "mamba_n_groups", "n_groups")
    channels = heads * dim + 2 * groups * size
    return LayerKV(MAMBA, 0, None, heads * dim * size, channels * (_either(config, "mamba_d_conv", "conv_kernel") - 1))


def _either(config: Any, *names: str) -> int:
    for name in names:
        if isinstance(value := getattr(config, name, None), int):
            return value
    raise ConfigError(f"the config has none of {', '.join(names)}; its recurrent layers cannot be counted")


def _field(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"the config says {name} is {value!r}; a number of at least 1 is needed to count its KV")
    return value


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.") if dtype else ""
