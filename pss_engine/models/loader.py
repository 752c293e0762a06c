"""``load_model``: one call from a name to a model that is ready to run."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from pss_engine.errors import ConfigError
from pss_engine.models.build import WeightReader, build
from pss_engine.models.cache import CacheFolder, PackedCache, ReadyModel, cache_folder
from pss_engine.models.checkpoint import Checkpoint, SafetensorsCheckpoint
from pss_engine.models.config import ModelConfig
from pss_engine.models.gguf import GGUFCheckpoint
from pss_engine.models.packing import why_not_packed
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.models.source import ModelSource, resolve
from pss_engine.models.tokenizer import Tokenizer
from pss_engine.models.transformer import Transformer
from pss_engine.process_memory import give_back_freed

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_SESSION_LAYERS = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A frozen base model.

    Attributes:
        source: where it was found; ``source.name`` is what the user named.
        fingerprint: identity of weights and geometry; states carry it, so that a state never meets another model.
        loaded_from: ``files`` of the model, or ``cache`` where a packed copy was ready.
    """

    source: ModelSource
    config: ModelConfig
    transformer: Transformer
    tokenizer: Tokenizer
    fingerprint: str
    dtype: torch.dtype
    device: torch.device
    loaded_from: str = "files"

    @property
    def name(self) -> str:
        return self.source.name


def load_model(
    name: str,
    *,
    num_session_layers: int = DEFAULT_SESSION_LAYERS,
    dtype: str = "auto",
    device: str = "auto",
    weights: str = "auto",
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load a model from a Hugging Face folder, a GGUF file, an installed model package or a hub id.

    Args:
        name: see :func:`pss_engine.models.source.resolve`.
        num_session_layers: layers above the cut, the only ones that states may touch; capped at the model's own number.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto`` (float32 on the CPU, bfloat16 on CUDA).
        device: a torch device or ``auto`` (CUDA where present).
        weights: how the CPU holds weights, whatever the dtype of activations: ``auto`` as in the file, ``float32``,
            ``bfloat16``, ``float16``, or ``int8`` (groups of 32). A GGUF file's quantised values stay what they are.
        cache: keep a copy as the CPU kernels read it (see :class:`PackedCache`), and start from it the next time.
        progress: called as ``progress(layers_done, layers)`` while the files are read.

    Raises:
        ConfigError: no such model, a damaged file, an unsupported family, or an unknown dtype.
    """
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; choices: auto, {', '.join(DTYPES)}")
    kind = DTYPES[dtype] if dtype != "auto" else (torch.float32 if place.type == "cpu" else torch.bfloat16)
    if num_session_layers < 1:
        raise ConfigError(f"session layers {num_session_layers} must be at least 1")
    source = resolve(name)
    packs = not why_not_packed(kind, place)
    kept = _cache(source, weights) if cache and packs else None
    ready = kept.load(num_session_layers) if kept else None
    loaded_from = "cache" if ready else "files"
    if ready is None:
        ready = _from_files(source, kind, place, num_session_layers, weights, progress)
        if kept:
            kept.store(ready)
    if packs:
        give_back_freed()
    network = ready.transformer
    return LoadedModel(source, network.config, network, ready.tokenizer, ready.fingerprint, kind, place, loaded_from)


def _from_files(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    num_session_layers: int,
    weights: str,
    progress: Callable[[int, int], None] | None,
) -> ReadyModel:
    checkpoint = _open(source)
    hf_config = checkpoint.config()
    config = ModelConfig.from_hf(hf_config)
    tokenizer = Tokenizer(checkpoint.tokenizer())
    config = replace(config, eos_token_ids=_eos(source, config, tokenizer))
    rope = RotaryEmbedding.from_hf(hf_config, config.rotary_dim, device)
    read = WeightReader(checkpoint, dtype, device)
    transformer = build(read, config, rope, min(num_session_layers, config.num_layers), weights, progress)
    fingerprint = hashlib.sha256(f"{read.fingerprint} {_geometry(config, rope)}".encode()).hexdigest()
    return ReadyModel(transformer, tokenizer, fingerprint)


def _cache(source: ModelSource, weights: str) -> PackedCache | None:
    try:
        return PackedCache(CacheFolder(cache_folder()), source, weights)
    except OSError as error:  # the load itself says what is wrong with the files
        _log.warning("packed models are not used for %s: %s", source.name, error)
        return None


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model alone; no weights are read. Raises ConfigError where there is no such model."""
    return Tokenizer(_open(resolve(name)).tokenizer())


def _geometry(config: ModelConfig, rope: RotaryEmbedding) -> str:
    """What decides the output beside the weights; limits and ends of a turn do not."""
    bare = replace(config, max_context=0, eos_token_ids=())
    return f"{bare} {rope.inv_freq.tolist()} {rope.attention_factor}"


def _open(source: ModelSource) -> Checkpoint:
    return GGUFCheckpoint(source.path) if source.kind == "gguf" else SafetensorsCheckpoint(source.path)


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
