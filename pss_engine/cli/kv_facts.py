"""A model's config, wherever it lies, and the KV that follows from it; weights are neither read nor fetched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.kv import KVPlan


@dataclass(frozen=True)
class KVFacts:
    """What ``pss inspect kv`` shows.

    Attributes:
        read_as: the class of transformers that filled in what the file leaves out, or that there is none.
        num_sessions: sessions of this length that ``memory_bytes`` hold, with the cut and without.
    """

    name: str
    path: str
    read_as: str
    plan: KVPlan
    memory_bytes: int

    @property
    def num_sessions(self) -> dict[str, int]:
        return {
            name: self.plan.num_sessions(self.memory_bytes, with_cut)
            for name, with_cut in (("without_cut", False), ("with_cut", True))
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "path": self.path,
            "read_as": self.read_as,
            **self.plan.to_dict(),
            "memory_bytes": self.memory_bytes,
            "num_sessions": self.num_sessions,
        }


def kv_facts(
    name: str,
    *,
    context: int,
    batch: int,
    kv_dtype: str,
    block_size: int,
    num_session_layers: int,
    common_tokens: int,
    memory_bytes: int,
) -> KVFacts:
    """Find a config and plan with it. ``context`` 0: the model's; ``common_tokens`` below 0: the whole context.

    Raises:
        ConfigError: no such model or config, one that does not say what is needed, or a number out of range.
    """
    from pss_engine.kv import KVPlan, ModelKV
    from pss_engine.kv.layers import model_dtype

    config, path, read_as = find_config(name)
    context = context or getattr(config, "max_position_embeddings", None) or 0
    if not context:
        raise ConfigError(f"model {name!r} does not say how long its context is; name one with --context")
    if memory_bytes < 1:
        raise ConfigError(f"memory_bytes is {memory_bytes}; it must be at least 1")
    plan = KVPlan(
        ModelKV.of(config),
        model_dtype(config) if kv_dtype == "auto" else kv_dtype,
        block_size,
        context,
        batch,
        num_session_layers,
        context if common_tokens < 0 else common_tokens,
    )
    return KVFacts(name, str(path), read_as, plan, memory_bytes)


def find_config(name: str) -> tuple[Any, Path, str]:
    """The text model's config of a ``.json`` file, a folder, a GGUF file, a package or a hub id.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    from pss_engine.models.source import resolve

    path = Path(name).expanduser()
    if path.suffix == ".json" or (path / "config.json").is_file():
        return _read(path if path.suffix == ".json" else path / "config.json")
    if "/" in name and not path.exists() and not name.startswith((".", "/", "~")) and path.suffix != ".gguf":
        return _read(_from_hub(name))
    source = resolve(name)
    if source.kind == "gguf":
        from pss_engine.models.gguf import GGUFCheckpoint

        config = GGUFCheckpoint(source.path).config()
        return config, source.path, type(config).__name__
    return _read(source.path / "config.json")


def _read(path: Path) -> tuple[Any, Path, str]:
    from transformers import CONFIG_MAPPING

    try:
        fields = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"config {str(path)!r} cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"config {str(path)!r} is a {type(fields).__name__}; it must be an object")
    kind = str(fields.get("model_type"))
    if kind in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[kind].from_dict(fields).get_text_config(decoder=True)
        except Exception as error:  # each class checks its fields in its own way
            raise ConfigError(f"config {str(path)!r} is no valid {kind}: {' '.join(str(error).split())}") from None
        return config, path, type(config).__name__
    text = {**fields, **(fields.get("text_config") or {})}
    return SimpleNamespace(**text), path, f"the file alone (transformers has no {kind!r})"


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json"))
    except Exception as error:  # the client raises many kinds, all of which mean the same to the user
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"config of {name!r} is not on this disk and could not be fetched: {reason}") from None
