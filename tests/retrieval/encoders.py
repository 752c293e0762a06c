"""A tiny random encoder as sentence-transformers lays one out, made once per run; and the real one, if installed."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from pss_engine.retrieval.encoder import DEFAULT_ENCODER, Encoder
from tests.tiny import tiny_tokenizer

_folders = tempfile.TemporaryDirectory(prefix="pss-encoder-")


def save_encoder(
    folder: Path, seed: int = 7, pooling: str = "mean", normalize: bool = True, **settings: object
) -> Path:
    """Write model, tokenizer and the files that say how the model is to be used."""
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
    )
    BertModel(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    described = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in zip(paths, modules, strict=False)
    ]
    (folder / "modules.json").write_text(json.dumps(described))
    (folder / "1_Pooling").mkdir()
    flags = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({flags[pooling]: True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@functools.cache
def tiny_encoder(seed: int = 7) -> Encoder:
    return Encoder(str(save_encoder(Path(_folders.name) / f"seed-{seed}", seed)))


def real_encoder() -> Encoder:
    try:
        importlib.metadata.distribution(DEFAULT_ENCODER)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"encoder package {DEFAULT_ENCODER} is not installed (make installs it)")
    return _real()


@functools.cache
def _real() -> Encoder:
    return Encoder()
