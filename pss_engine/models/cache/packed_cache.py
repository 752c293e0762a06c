"""``PackedCache``: a model as it lies in memory, kept on disk by the digest of what it was made from."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pss_engine.ops.packed_weight
import pss_engine.ops.quantized
from pss_engine import __version__
from pss_engine.durable import write_durably
from pss_engine.errors import PSSError
from pss_engine.models.cache.folder import CacheFolder
from pss_engine.models.cache.network import network_of, parts_of
from pss_engine.models.cache.source_digest import SourceDigests
from pss_engine.models.cache.tensors import Damaged, read_tensors, write_tensors
from pss_engine.models.cache.tokenizers import read_tokenizer, write_tokenizer
from pss_engine.models.config import ModelConfig
from pss_engine.models.memory import WeightMemory
from pss_engine.models.source import ModelSource
from pss_engine.models.tokenizer import Tokenizer
from pss_engine.models.transformer import Transformer
from pss_engine.ops.packed_weight import PackedWeight
from pss_engine.process_memory import give_back_freed

INFO, WEIGHTS, TOKENIZER = "model.json", "weights.safetensors", "tokenizer"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadyModel:
    """What a load makes of a model's files."""

    transformer: Transformer
    tokenizer: Tokenizer
    fingerprint: str


class PackedCache:
    """Reads and writes one model, as ``weights`` has it packed.

    An entry is looked up by the digest of the model's files, ``weights``, and the versions and source text of all that
    makes it, so that neither other weights nor other code is ever served from it. It is proved by its digests while it
    is read. One that is damaged is removed with a warning, and the model is loaded from its files; so it is where the
    folder cannot be read or written.
    """

    def __init__(self, folder: CacheFolder, source: ModelSource, weights: str) -> None:
        self._folder, self._source, self._weights = folder, source, weights
        self._digests = SourceDigests(folder.sources)
        self._key = self._make_key()

    def load(self, num_session_layers: int) -> ReadyModel | None:
        """The model with its cut below the last layers, or None where it is not kept."""
        path = self._folder.entry(self._key)
        if not path.is_dir():
            return None
        try:
            ready = _read(path, num_session_layers)
        except (Damaged, OSError) as error:
            if path.is_dir():
                _log.warning("packed model %s is damaged and removed: %s", path, error)
                self._folder.discard(path)
            return None
        self._folder.touch(self._key)
        return ready

    def store(self, model: ReadyModel) -> None:
        """Keep a model that was loaded from the files, unless these have changed since."""
        if self._make_key() != self._key:
            return
        num_bytes = sum(
            part.numel() * part.element_size() for part in map(_tensor, parts_of(model.transformer).values())
        )
        try:
            self._folder.put(self._key, num_bytes, lambda path: _write(path, model, self._source, self._weights))
        except (OSError, PSSError) as error:
            _log.warning("packed model of %s is not kept in %s: %s", self._source.name, self._folder.root, error)

    def _make_key(self) -> str:
        made_by = [*_made_by(), self._weights, self._digests(self._source)]
        return hashlib.sha256(json.dumps(made_by).encode()).hexdigest()


def _write(path: Path, model: ReadyModel, source: ModelSource, weights: str) -> None:
    network, folder = model.transformer, path / TOKENIZER
    reader = write_tokenizer(folder, model.tokenizer)
    parts = parts_of(network)
    digests = write_tensors(path / WEIGHTS, {name: _tensor(part) for name, part in parts.items()})
    info = {
        "source": {"name": source.name, "kind": source.kind, "path": str(source.path), "weights": weights},
        "fingerprint": model.fingerprint,
        "config": asdict(network.config),
        "attention_factor": network.rope.attention_factor,
        "packed": {
            name: {"format": part.format, "shape": [part.out_features, part.in_features]}
            for name, part in parts.items()
            if isinstance(part, PackedWeight)
        },
        "tensors": digests,
        "tokenizer": _file_digests(folder),
        "tokenizer_reader": reader,
    }
    document = {"sha256": _digest(info), "model": info}
    write_durably(path / INFO, [json.dumps(document, indent=1).encode()])


def _read(path: Path, num_session_layers: int) -> ReadyModel:
    info = read_info(path)
    try:
        if _file_digests(path / TOKENIZER) != info["tokenizer"]:
            raise Damaged("a file of the tokenizer is another than was written")
        tokenizer = read_tokenizer(path / TOKENIZER, info["tokenizer_reader"])
        give_back_freed()  # parsing it took twice what it keeps; the weights can have that
        config = {**info["config"], "windows": tuple(info["config"]["windows"])}
        config["eos_token_ids"] = tuple(config["eos_token_ids"])
        found = read_tensors(path / WEIGHTS, info["tensors"], WeightMemory())
        parts: dict[str, Tensor | PackedWeight] = dict(found)
        for name, packed in info["packed"].items():
            parts[name] = PackedWeight(packed["format"], found[name], *packed["shape"])
        cut = min(num_session_layers, config["num_layers"])
        network = network_of(parts, ModelConfig(**config), info["attention_factor"], cut)
        return ReadyModel(network, tokenizer, info["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{INFO}: {error!r}") from error


def read_info(path: Path) -> dict[str, Any]:
    """What an entry says of itself: source, config, tensors. Raises Damaged."""
    try:
        document = json.loads((path / INFO).read_text("utf-8"))
        info: dict[str, Any] = document["model"]
        if document["sha256"] != _digest(info):
            raise Damaged(f"{INFO}: another digest than when it was written")
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{INFO}: {error!r}") from None
    return info


def _tensor(part: Tensor | PackedWeight) -> Tensor:
    return part.panels if isinstance(part, PackedWeight) else part


def _file_digests(folder: Path) -> dict[str, str]:
    """sha256 of each file."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _digest(info: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()


@cache
def _made_by() -> tuple[str, ...]:
    """The versions and the source text of what decides the content of an entry."""
    models = Path(__file__).parents[1]
    ops = [Path(str(module.__file__)) for module in (pss_engine.ops.packed_weight, pss_engine.ops.quantized)]
    source = hashlib.sha256()
    for path in sorted(models.rglob("*.py")) + ops:
        source.update(path.read_bytes())
    packages = [f"{name} {version(name)}" for name in ("transformers", "tokenizers", "gguf")]
    return (__version__, source.hexdigest(), f"torch {torch.__version__}", *packages, sys.byteorder)
