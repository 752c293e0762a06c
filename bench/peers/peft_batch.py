"""PEFT with a mixed batch: transformers' model, every adapter loaded, ``adapter_names`` for the rows of one batch."""

from __future__ import annotations

import functools
import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from bench.peers.peft_writer import load
from bench.serving import Served
from pss_engine.models.source import ModelSource

NAME = f"peft-batch {importlib.metadata.version('peft')}"


class Clock(StoppingCriteria):
    """Reads the clock after every token and stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def load_adapters(source: ModelSource, adapters: Mapping[str, Path]) -> PeftModel:
    """The model with all adapters, float32; one copy for all peers of a run."""
    return _load_adapters(source, tuple(adapters.items()))


@functools.lru_cache(maxsize=1)
def _load_adapters(source: ModelSource, adapters: tuple[tuple[str, Path], ...]) -> PeftModel:
    (name, folder), *others = adapters
    model = PeftModel.from_pretrained(load(source), folder, adapter_name=name)
    for name, folder in others:
        model.load_adapter(folder, adapter_name=name)
    # an end of turn ends nothing: every stack generates the same number of tokens
    for part in (model, model.get_base_model()):
        setattr(part, "generation_config", GenerationConfig(pad_token_id=0))  # noqa: B010  (typed as a module)
    return model.eval()


def generate(
    model: PeftModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, **options: Any
) -> tuple[list[list[int]], list[float]]:
    """New tokens of every row, and the clock at each of them. Prompts of one length, so that nothing is padded."""
    clock, ids = Clock(), torch.tensor(prompts)
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            stopping_criteria=StoppingCriteriaList([clock]),
            **options,
        )
    tokens: list[list[int]] = found[:, ids.size(1) :].tolist()
    return tokens, clock.times


class Server:
    def __init__(self, source: ModelSource, adapters: Mapping[str, Path], max_tokens: int) -> None:
        self._model = load_adapters(source, adapters)

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        start = time.perf_counter()
        tokens, times = generate(self._model, prompts, max_new_tokens, adapter_names=list(sessions))
        first, last = times[0] - start, times[-1] - start
        return Served(tokens, [first] * len(prompts), [last] * len(prompts), time.perf_counter() - start)
