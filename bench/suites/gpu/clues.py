"""Clues of 64 tokens end to end: the sessions one by one, and all in one batch; with drafts and without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from bench.environment import say
from bench.rows import Measurement
from bench.suites.engine.work import RANK, clue_prompt, differing, engine_of, random_states, requests, tokens_of
from bench.suites.finding import backend
from bench.suites.gpu.model import Shape
from pss_engine.models import LoadedModel

NUM_SESSIONS = 32
QUICK_SESSIONS = 4
CLUE_TOKENS = 64
QUICK_TOKENS = 12


def run(model: LoadedModel, shape: Shape, quick: bool) -> Iterator[Measurement]:
    count, tokens = (QUICK_SESSIONS, QUICK_TOKENS) if quick else (NUM_SESSIONS, CLUE_TOKENS)
    states = random_states(model, count)
    prompts = [clue_prompt(model, i) for i in range(count)]
    names: list[str | None] = [state.session_id for state in states]
    plain: list[list[int]] = []
    for drafted in (False, True):
        say(f"bench: clues, {'drafted' if drafted else 'plain'}")
        if drafted:  # as a written state, each knows what it will most likely say
            states = [
                replace(state, meta=replace(state.meta, readout_token_ids=tuple(said)))
                for state, said in zip(states, plain, strict=True)
            ]
        limit = 8 if drafted else 0
        engine = engine_of(
            model, states, num_state_slots=count, max_num_seqs=count, max_draft_tokens=limit, max_context=512
        )
        work = requests(prompts, names, tokens)
        tokens_of(engine.generate(work))
        seconds: dict[str, float] = {}
        start = time.perf_counter()
        alone = [tokens_of(engine.generate([request]))[0] for request in work]
        seconds["one by one"] = time.perf_counter() - start
        start = time.perf_counter()
        together = tokens_of(engine.generate(work))
        seconds["all at once"] = time.perf_counter() - start
        plain = plain or together
        checked = differing(together, alone) if not drafted else differing(together, plain)
        params = {"model": shape.name, "rank": RANK, "sessions": count, "clue_tokens": tokens, "drafted": drafted}
        name, kind = backend(engine), model.device.type
        for how, taken in seconds.items():
            yield Measurement(
                "clues", {**params, "how": how}, name, "seconds", "s", [taken], checked, count, device=kind
            )
        share = seconds["all at once"] / (seconds["one by one"] / count)
        yield Measurement("clues", params, name, "batch_over_one_clue", "ratio", [share], checked, count, device=kind)
        engine.check()
        engine.slots.close()
