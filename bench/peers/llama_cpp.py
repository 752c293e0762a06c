"""llama.cpp through llama-cpp-python: the base model from the same GGUF, one request after another.

It runs in a process of its own: how OpenMP's threads wait is settled once a process, and the passive waiting that suits
ours would halve its speed.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import llama_cpp
import torch

from bench.serving import PeerFailed, Served
from pss_engine.models.source import ModelSource

NAME = f"llama.cpp {importlib.metadata.version('llama-cpp-python')}"
NOTE = "the base model with its quantised weights, without adapters: an upper bound on one adapter after another"


class Server:
    def __init__(self, source: ModelSource, adapters: Mapping[str, Path], max_tokens: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        waiting = os.environ.pop("OMP_WAIT_POLICY", None)
        try:
            arguments = (theirs, str(source.path), max_tokens, torch.get_num_threads())
            self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
        finally:
            if waiting is not None:
                os.environ["OMP_WAIT_POLICY"] = waiting
        theirs.close()
        self.serve([[0]], [""], 1)

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        try:
            self._pipe.send(([list(prompt) for prompt in prompts], max_new_tokens))
            served: Served = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise PeerFailed(f"its process ended with exit code {self._process.exitcode}") from None
        return served


def _serve(pipe: Connection, path: str, max_tokens: int, num_threads: int) -> None:
    model = llama_cpp.Llama(
        path, n_ctx=max_tokens, n_threads=num_threads, n_threads_batch=num_threads, n_gpu_layers=0, verbose=False
    )
    while True:
        pipe.send(_run(model, *pipe.recv()))


def _run(model: llama_cpp.Llama, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Served:
    token_ids, first, total = [], [], []
    start = time.perf_counter()
    for prompt in prompts:
        model.reset()
        stream = model.generate(list(prompt), top_k=1, temp=0.0, repeat_penalty=1.0)
        tokens = [next(stream)]
        first.append(time.perf_counter() - start)
        tokens += islice(stream, max_new_tokens - 1)
        total.append(time.perf_counter() - start)
        token_ids.append(tokens)
    return Served(token_ids, first, total, time.perf_counter() - start)
