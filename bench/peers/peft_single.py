"""PEFT one by one: the adapter of a request is made the active one, then the request runs alone."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.peft_batch import generate, load_adapters
from bench.serving import Served
from pss_engine.models.source import ModelSource

NAME = f"peft-single {importlib.metadata.version('peft')}"


class Server:
    def __init__(self, source: ModelSource, adapters: Mapping[str, Path], max_tokens: int) -> None:
        self._model = load_adapters(source, adapters)

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        token_ids, first, total = [], [], []
        start = time.perf_counter()
        for prompt, session in zip(prompts, sessions, strict=True):
            self._model.set_adapter(session)
            tokens, times = generate(self._model, [prompt], max_new_tokens)
            token_ids += tokens
            first.append(times[0] - start)
            total.append(times[-1] - start)
        return Served(token_ids, first, total, time.perf_counter() - start)
