"""``load_model``: one call from a name to a model that is ready to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from pss_engine.errors import ConfigError
from pss_engine.models.build import WeightReader, build
from pss_engine.models.checkpoint import Checkpoint, SafetensorsCheckpoint
from pss_engine.models.config import ModelConfig
from pss_engine.models.gguf import GGUFCheckpoint
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.models.source import ModelSource, resolve
from pss_engine.models.tokenizer import Tokenizer
from pss_engine.models.transformer import Transformer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_SESSION_LAYERS = 8


@dataclass(frozen=True)
class LoadedModel:
    """A frozen base model.

    Attributes:
        source: where it was found; ``source.name`` is what the user named.
        fingerprint: identity of weights and geometry; states carry it, so that a state never meets another model.
    """

    source: ModelSource
    config: ModelConfig
    transformer: Transformer
    tokenizer: Tokenizer
    fingerprint: str
    dtype: torch.dtype
    device: torch.device

    @property
    def name(self) -> str:
        return self.source.name


def load_model(
    name: str,
    *,
    num_session_layers: int = DEFAULT_SESSION_LAYERS,
    dtype: str = "auto",
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load a model from a Hugging Face folder, a GGUF file, an installed model package or a hub id.

    Args:
        name: see :func:`pss_engine.models.source.resolve`.
        num_session_layers: layers above the cut, the only ones that states may touch; capped at the model's own number.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto`` (float32 on the CPU, bfloat16 on CUDA).
        device: a torch device or ``auto`` (CUDA where present).
        progress: called as ``progress(layers_done, layers)``.

    Raises:
        ConfigError: no such model, a damaged file, an unsupported family, or an unknown dtype.
    """
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; choices: auto, {', '.join(DTYPES)}")
    kind = DTYPES[dtype] if dtype != "auto" else (torch.float32 if place.type == "cpu" else torch.bfloat16)
    source = resolve(name)
    checkpoint = _open(source)
    hf_config = checkpoint.config()
    config = ModelConfig.from_hf(hf_config)
    tokenizer = Tokenizer(checkpoint.tokenizer())
    config = replace(config, eos_token_ids=_eos(source, config, tokenizer))
    rope = RotaryEmbedding.from_hf(hf_config, config.rotary_dim, place)
    read = WeightReader(checkpoint, kind, place)
    transformer = build(read, config, rope, min(num_session_layers, config.num_layers), progress)
    fingerprint = hashlib.sha256(f"{read.fingerprint} {_geometry(config, rope)}".encode()).hexdigest()
    return LoadedModel(source, config, transformer, tokenizer, fingerprint, kind, place)


def _geometry(config: ModelConfig, rope: RotaryEmbedding) -> str:
    """What decides the output beside the weights; limits and ends of a turn do not."""
    bare = replace(config, max_context=0, eos_token_ids=())
    return f"{bare} {rope.inv_freq.tolist()} {rope.attention_factor}"


def _open(source: ModelSource) -> Checkpoint:
    return GGUFCheckpoint(source.path) if source.kind == "gguf" else SafetensorsCheckpoint(source.path)


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model alone; its weights are not read. Raises ConfigError as :func:`load_model`."""
    return Tokenizer(_open(resolve(name)).tokenizer())


def _eos(source: ModelSource, config: ModelConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Every id that ends a turn: the config's, the tokenizer's, and those of generation_config.json."""
    ids = {*config.eos_token_ids}
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    generation = source.path / "generation_config.json"
    if source.kind == "hf" and generation.is_file():
        value = json.loads(generation.read_text("utf-8")).get("eos_token_id", [])
        ids |= {value} if isinstance(value, int) else set(value or [])
    return tuple(sorted(ids))
