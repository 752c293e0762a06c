"""Time to the first token while states come and go: all resident, half of them missing, twice as many as slots."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environment import say
from bench.rows import Measurement
from bench.serving import percentile
from bench.suites import MODEL
from bench.suites.engine.work import (
    IDLE_WAIT_S,
    PROMPT_TOKENS,
    RANK,
    clue_prompt,
    differing,
    engine_of,
    random_states,
    requests,
    tokens_of,
)
from bench.suites.finding import backend
from pss_engine.engine import RequestOutput
from pss_engine.models import LoadedModel
from pss_engine.state import StateStore

NUM_SLOTS = 4
NUM_IN_FLIGHT = 4
MAX_NEW_TOKENS = 8
SEED = 91
POPULARITIES = ("uniform", "zipf")


@dataclass(frozen=True)
class Setting:
    """So many states in use, so many of them resident when the stream begins."""

    name: str
    num_states: int
    num_warm: int


SETTINGS = (
    Setting("all resident", NUM_SLOTS, NUM_SLOTS),
    Setting("half missing", NUM_SLOTS, NUM_SLOTS // 2),
    Setting("twice the slots", 2 * NUM_SLOTS, NUM_SLOTS),
)


def run(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    num_rounds, num_requests = (2, 12) if quick else (4, 15)
    names = [f"s{i}" for i in range(2 * NUM_SLOTS)]
    prompts = {name: clue_prompt(model, i) for i, name in enumerate(names)}
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        store, states = StateStore(Path(folder)), random_states(model, len(names))
        for state in states:
            store.put(state)
        quiet = engine_of(model, states, num_state_slots=len(names))
        alone = quiet.generate(requests(list(prompts.values()), names, MAX_NEW_TOKENS))
        expected = dict(zip(names, tokens_of(alone), strict=True))
        name = backend(quiet)
        del quiet, states
        for popularity in POPULARITIES:
            say(f"bench: states come and go, {popularity}")
            streams = {setting.name: Stream(model, store, setting, prompts) for setting in SETTINGS}
            for number in range(num_rounds):
                for setting in SETTINGS:
                    sessions = draw(names[: setting.num_states], popularity, num_requests, SEED + number)
                    streams[setting.name].serve(sessions)
            resident = percentile(streams[SETTINGS[0].name].first_token_s, 0.99)
            for stream in streams.values():
                params = {
                    "model": MODEL,
                    "rank": RANK,
                    "prompt_tokens": PROMPT_TOKENS,
                    "new_tokens": f"1 to {MAX_NEW_TOKENS}",
                    "slots": NUM_SLOTS,
                    "in_flight": NUM_IN_FLIGHT,
                    "popularity": popularity,
                    "states": stream.name,
                }
                yield from stream.rows(params, name, expected, resident)
                stream.close()


def draw(sessions: Sequence[str], popularity: str, count: int, seed: int) -> list[str]:
    """Sessions of the requests; ``zipf``: session i with weight 1/i."""
    weights = [1 / rank if popularity == "zipf" else 1.0 for rank in range(1, len(sessions) + 1)]
    return random.Random(seed).choices(sessions, weights, k=count)


class Stream:
    """An engine over a store, and all that was asked of it."""

    def __init__(
        self, model: LoadedModel, store: StateStore, setting: Setting, prompts: Mapping[str, list[int]]
    ) -> None:
        self.name, self._prompts = setting.name, prompts
        self.sessions: list[str] = []
        self.outputs: list[RequestOutput] = []
        self.engine = engine_of(model, num_state_slots=NUM_SLOTS)
        used = list(prompts)[: setting.num_states]
        for session in used:
            self.engine.add_stored(store, session)
        warm = used[: setting.num_warm]
        self.engine.generate(requests([prompts[session] for session in warm], warm, 1))
        self._before = self._counts()

    @property
    def first_token_s(self) -> list[float]:
        return [output.timings.time_to_first_token_s for output in self.outputs]

    def serve(self, sessions: Sequence[str]) -> None:
        """Requests in order, ``NUM_IN_FLIGHT`` at a time: the next one comes when one has ended. Lengths differ, so
        that requests do not start together."""
        engine, coming = self.engine, list(reversed(sessions))
        ids: list[str] = []
        done: dict[str, RequestOutput] = {}
        while len(done) < len(sessions):
            while coming and engine.num_unfinished < NUM_IN_FLIGHT:
                session, num_tokens = coming.pop(), 1 + len(ids) * 3 % MAX_NEW_TOKENS
                ids.append(engine.add(requests([self._prompts[session]], [session], num_tokens)[0]))
            outputs = engine.step()
            if not outputs and not engine.num_running:
                engine.slots.wait(IDLE_WAIT_S)
            done.update({output.request_id: output for output in outputs})
        self.sessions += sessions
        self.outputs += [done[request_id] for request_id in ids]

    def rows(
        self, params: Mapping[str, object], name: str, expected: Mapping[str, list[int]], resident: float
    ) -> Iterator[Measurement]:
        """``resident``: p99 of the time to the first token where all states were resident."""
        found = tokens_of(self.outputs)
        wanted = [expected[session][: len(tokens)] for session, tokens in zip(self.sessions, found, strict=True)]
        checked, case, n = differing(found, wanted), "states come and go", len(found)
        slowest = percentile(self.first_token_s, 0.99)
        counts = {key: value - self._before[key] for key, value in self._counts().items()}
        seconds = counts.pop("load_seconds")
        yield Measurement(case, params, name, "time_to_first_token", "s", self.first_token_s, checked)
        yield Measurement(case, params, name, "time_to_first_token_p99", "s", [slowest], checked, n)
        yield Measurement(case, params, name, "p99_over_resident", "ratio", [slowest / resident], checked, n)
        for key, value in counts.items():
            yield Measurement(case, params, name, f"{key}_per_request", "share", [value / n], checked, n)
        if counts["loads"]:
            yield Measurement(case, params, name, "seconds_per_load", "s", [seconds / counts["loads"]], checked, n)

    def close(self) -> None:
        """Check the books, end the loader."""
        self.engine.check()
        self.engine.slots.close()

    def _counts(self) -> dict[str, float]:
        counts = self.engine.slots.counters.to_dict()
        return {name: counts[name] for name in ("hits", "misses", "loads", "evictions", "load_seconds")}
