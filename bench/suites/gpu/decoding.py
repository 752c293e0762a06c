"""Time per output token at 1 to 64 rows: no state, idle states, one for all rows, one for each; graphs on and off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from bench.environment import say
from bench.rows import Measurement
from bench.suites.engine.work import RANK, clue_prompt, differing, engine_of, random_states, requests, tokens_of
from bench.suites.finding import backend
from bench.suites.gpu.model import Shape
from pss_engine.engine import Engine
from pss_engine.models import LoadedModel

NUM_ROWS = (1, 2, 8, 16, 32, 64)
QUICK_ROWS = (1, 8)
NEW_TOKENS = 64
QUICK_TOKENS = 16
IDENTITY_RUNS = 64
KV_CACHE_BYTES = 4 << 30


def run(model: LoadedModel, shape: Shape, quick: bool) -> Iterator[Measurement]:
    rows = QUICK_ROWS if quick else NUM_ROWS
    states = random_states(model, rows[-1])
    for graphs in (True, False) if model.device.type == "cuda" else (False,):
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        engine = engine_of(
            model,
            num_state_slots=rows[-1],
            max_num_seqs=rows[-1],
            max_batched_tokens=2048,
            kv_cache_bytes=KV_CACHE_BYTES if model.device.type == "cuda" else 32 << 20,
            max_context=512,
            cuda_graphs=graphs,
        )
        say(f"bench: decoding, graphs {'on' if graphs else 'off'}")
        yield from _decode(engine, model, shape, states, rows, QUICK_TOKENS if quick else NEW_TOKENS, graphs)
        if model.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
            params = {"model": shape.name, "graphs": graphs, "rows": rows[-1], "states": len(states)}
            yield Measurement(
                "peak memory", params, backend(engine), "bytes", "bytes", [peak], "a size: nothing to be equal to",
                device="cuda",
            )  # fmt: skip
        engine.check()
        engine.slots.close()


def _decode(
    engine: Engine, model: LoadedModel, shape: Shape, states: Sequence, counts: Sequence[int], tokens: int, graphs: bool
) -> Iterator[Measurement]:
    names = [state.session_id for state in states]
    base: dict[int, float] = {}
    for setting in ("none", "idle", "one", "distinct"):
        if setting == "idle":
            for state in states:
                engine.add_state(state)
            prompts = [clue_prompt(model, 0)] * len(names)
            tokens_of(engine.generate(requests(prompts, names, 1)))
        for count in counts:
            sessions: list[str | None] = {"one": [names[0]] * count, "distinct": names[:count]}.get(
                setting, [None] * count
            )
            yield from _batch(engine, model, shape, setting, sessions, tokens, graphs, base)
    yield from _identity(engine, model, shape, names[: counts[-1]], graphs, 4 if len(counts) == 2 else IDENTITY_RUNS)


def _batch(
    engine: Engine,
    model: LoadedModel,
    shape: Shape,
    setting: str,
    sessions: list[str | None],
    tokens: int,
    graphs: bool,
    base: dict[int, float],
) -> Iterator[Measurement]:
    count = len(sessions)
    work = requests([clue_prompt(model, i) for i in range(count)], sessions, tokens)
    expected = tokens_of(engine.generate(work))
    outputs = engine.generate(work)
    checked = differing(tokens_of(outputs), expected)
    times = [(o.timings.total_s - o.timings.time_to_first_token_s) / (tokens - 1) for o in outputs]
    params = {"model": shape.name, "rank": RANK, "rows": count, "states": setting, "graphs": graphs}
    name, kind = backend(engine), model.device.type
    yield Measurement("decoding", params, name, "time_per_token", "s", times, checked, device=kind)
    middle = sorted(times)[len(times) // 2]
    if setting == "none":
        base[count] = middle
    else:
        yield Measurement(
            "decoding", params, name, "over_no_state", "share", [middle / base[count] - 1], checked, device=kind
        )


def _identity(
    engine: Engine, model: LoadedModel, shape: Shape, sessions: Sequence[str], graphs: bool, runs: int
) -> Iterator[Measurement]:
    work = requests([clue_prompt(model, i) for i in range(len(sessions))], list(sessions), 16)
    first = tokens_of(engine.generate(work))
    alike = [tokens_of(engine.generate(work)) == first for _ in range(runs - 1)]
    params = {"model": shape.name, "rows": len(sessions), "states": "distinct", "graphs": graphs, "runs": runs}
    checked = all(alike) or f"{alike.count(False)} of {runs} runs differ"
    share = (1 + sum(alike)) / runs
    yield Measurement(
        "run-to-run identity", params, backend(engine), "identical", "share", [share], checked, runs,
        device=model.device.type,
    )  # fmt: skip
