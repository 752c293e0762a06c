"""What a GPU does: bandwidth of the kernels, decoding with states, states that come in, clues. One module a question.

The model has the shape of Qwen2.5-7B and random weights, so that nothing need be downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.rows import Measurement
from bench.suites import Options, Skipped
from bench.suites.gpu import clues, decoding, kernels, searching, swapping
from bench.suites.gpu.model import QWEN_7B, Shape, random_model
from pss_engine.models import LoadedModel

PARTS = (kernels, searching, decoding, swapping, clues)


def run(options: Options) -> Iterator[Measurement]:
    if not torch.cuda.is_available():
        raise Skipped("torch sees no CUDA device")
    yield from measure(QWEN_7B, "cuda", options.quick)


def measure(shape: Shape, device: str, quick: bool) -> Iterator[Measurement]:
    """All parts on one model."""
    model: LoadedModel = random_model(shape, device)
    for part in PARTS:
        yield from part.run(model, shape, quick)
