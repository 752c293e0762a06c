"""llama.cpp through llama-cpp-python: the base model from the same GGUF, one request after another."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch
from llama_cpp import Llama

from bench.serving import Served
from pss_engine.models.source import ModelSource

NAME = f"llama.cpp {importlib.metadata.version('llama-cpp-python')}"
NOTE = "the base model with its quantised weights, without adapters: an upper bound on one adapter after another"


class Server:
    def __init__(self, source: ModelSource, adapters: Mapping[str, Path], max_tokens: int) -> None:
        self._model = Llama(
            str(source.path), n_ctx=max_tokens, n_threads=torch.get_num_threads(), n_gpu_layers=0, verbose=False
        )

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        token_ids, first, total = [], [], []
        start = time.perf_counter()
        for prompt in prompts:
            self._model.reset()
            stream = self._model.generate(list(prompt), top_k=1, temp=0.0, repeat_penalty=1.0)
            tokens = [next(stream)]
            first.append(time.perf_counter() - start)
            tokens += islice(stream, max_new_tokens - 1)
            total.append(time.perf_counter() - start)
            token_ids.append(tokens)
        return Served(token_ids, first, total, time.perf_counter() - start)
