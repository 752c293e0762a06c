"""States, prompts and engines that the engine's measurements have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, RequestOutput, SamplingParams
from pss_engine.models import LoadedModel
from pss_engine.state import SessionState, StateMeta
from pss_engine.writer import INSTRUCTION, clue_messages

RANK = 32
PROMPT_TOKENS = 44
IDLE_WAIT_S = 0.1
KV_CACHE_BYTES = 256 * 1024 * 1024
QUESTIONS = (
    "Which of the two variants do we keep for the next run, and why did we leave the other one?",
    "Where did we stop yesterday, and what was still open when the last message came in?",
    "What was the name of the setting that we changed after the second failure of the job?",
    "Who has to agree before we go on, and what do they need from our side to decide?",
)


def random_state(model: LoadedModel, name: str, seed: int) -> SessionState:
    """Random factors of rank 32 in bfloat16 for every linear of the session layers, as a written state has them."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    tensors = {
        (layer, name): (
            (randn(RANK, target.in_features) / target.in_features**0.5).bfloat16(),
            (randn(target.out_features, RANK) * 0.05).bfloat16(),
        )
        for layer in model.transformer.session_layers
        for name, target in model.config.lora_targets.items()
    }
    meta = StateMeta(model_fingerprint=model.fingerprint, tokenizer_fingerprint=model.tokenizer.fingerprint)
    return SessionState.from_tensors(name, tensors, alpha=2.0 * RANK, meta=meta)


def random_states(model: LoadedModel, count: int) -> list[SessionState]:
    return [random_state(model, f"s{i}", seed=i) for i in range(count)]


def clue_prompt(model: LoadedModel, number: int) -> list[int]:
    """A clue's prompt, cut to 44 tokens, so that those of a batch have one length."""
    question = f"{number}: {QUESTIONS[number % len(QUESTIONS)]} {QUESTIONS[(number + 1) % len(QUESTIONS)]}"
    return model.tokenizer.chat(clue_messages(INSTRUCTION, question))[:PROMPT_TOKENS]


def engine_of(model: LoadedModel, states: Iterable[SessionState] = (), **config: Any) -> Engine:
    """An engine that only decodes: no drafts, no prefix cache, unless told otherwise."""
    limits: dict[str, Any] = {
        "kv_cache_bytes": KV_CACHE_BYTES,
        "max_rank": RANK,
        "max_draft_tokens": 0,
        "prefix_caching": False,
    }
    engine = Engine(model, EngineConfig(**{**limits, **config}))
    for state in states:
        engine.add_state(state)
    return engine


def requests(
    prompts: Sequence[Sequence[int]], sessions: Sequence[str | None], max_new_tokens: int, ignore_eos: bool = True
) -> list[Request]:
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=ignore_eos)
    return [Request(prompt, params, session=session) for prompt, session in zip(prompts, sessions, strict=True)]


def tokens_of(outputs: Iterable[RequestOutput]) -> list[list[int]]:
    """Tokens by request; a request that failed ends the run, since its times would be no times."""
    found = []
    for output in outputs:
        if output.finish_reason not in ("length", "stop"):
            raise RuntimeError(f"request {output.request_id} ended by {output.finish_reason}: {output.error}")
        found.append(output.token_ids)
    return found


def differing(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> bool | str:
    """True where all tokens are equal, else how many requests differ."""
    num_differing = sum(list(a) != list(b) for a, b in zip(found, expected, strict=True))
    return not num_differing or f"tokens of {num_differing} of {len(expected)} requests differ"
