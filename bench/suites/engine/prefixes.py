"""Eight sessions with one instruction: what the prefix cache with the cut runs again, and what it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.engine.work import QUESTIONS, RANK, differing, engine_of, random_states, requests, tokens_of
from bench.suites.finding import backend
from pss_engine.engine import Engine
from pss_engine.models import LoadedModel
from pss_engine.writer import INSTRUCTION, clue_messages

NUM_SESSIONS = 8
NEW_TOKENS = 4
GUIDE = (
    "Name the thing that the session works on now, then its variant, then the identifiers that belong to it. "
    "Leave out what was archived, what was only tried, and what belongs to another site. Use the words of the session, "
    "not your own. Do not explain, do not greet, do not repeat the request, do not add punctuation at the end. "
    "If two variants were compared, name the one that was kept. If a value was corrected later, name the later value. "
)


def run(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    states = random_states(model, NUM_SESSIONS)
    for repeats, instruction in ((0, INSTRUCTION), (1, GUIDE + INSTRUCTION), (3, GUIDE * 3 + INSTRUCTION)):
        if quick and repeats == 3:
            continue
        prompts = [
            model.tokenizer.chat(clue_messages(instruction, QUESTIONS[i % len(QUESTIONS)])) for i in range(NUM_SESSIONS)
        ]
        common = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
        params = {
            "model": MODEL,
            "rank": RANK,
            "sessions": NUM_SESSIONS,
            "common_tokens": common,
            "new_tokens": NEW_TOKENS,
        }
        engines = {
            name: engine_of(model, states, num_state_slots=NUM_SESSIONS, prefix_caching=name == "with")
            for name in ("without", "with")
        }
        for turn in ("first turn", "second turn"):
            found = {name: Turn(engine, prompts) for name, engine in engines.items()}
            checked = differing(found["with"].token_ids, found["without"].token_ids)
            where = {**params, "turn": turn}
            yield from _rows(where, backend(engines["with"]), found["with"], found["without"], checked)
        for engine in engines.values():
            engine.check()


class Turn:
    """Every session asks once, one after another: tokens run on both sides of the cut, seconds, what was said."""

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
        counters = engine.counters
        shared, session, start = counters.num_shared_tokens, counters.num_tokens, time.perf_counter()
        self.token_ids: list[list[int]] = []
        for i, prompt in enumerate(prompts):
            self.token_ids += tokens_of(engine.generate(requests([prompt], [f"s{i}"], NEW_TOKENS)))
        self.seconds = time.perf_counter() - start
        self.shared_tokens = counters.num_shared_tokens - shared
        self.session_tokens = counters.num_tokens - session


def _rows(params: dict[str, object], name: str, cached: Turn, cold: Turn, checked: bool | str) -> Iterator[Measurement]:
    for cache, turn in (("on", cached), ("off", cold)):
        where = {**params, "prefix_cache": cache}
        metrics = {
            "tokens_below_the_cut": (turn.shared_tokens, "tokens"),
            "tokens_above_the_cut": (turn.session_tokens, "tokens"),
            "seconds": (turn.seconds, "s"),
        }
        for metric, (value, unit) in metrics.items():
            yield Measurement("one instruction for all", where, name, metric, unit, [value], checked, NUM_SESSIONS)
    saved = {
        "below_the_cut": 1 - cached.shared_tokens / cold.shared_tokens,
        "above_the_cut": 1 - cached.session_tokens / cold.session_tokens,
        "seconds": 1 - cached.seconds / cold.seconds,
    }
    for metric, value in saved.items():
        yield Measurement(
            "one instruction for all: saved", params, name, metric, "share", [value], checked, NUM_SESSIONS
        )
