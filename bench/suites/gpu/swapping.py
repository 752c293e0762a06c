"""States that come in while others decode: bytes over the time of a load, and what the rows beside it notice."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.environment import say
from bench.rows import Measurement
from bench.serving import percentile
from bench.suites.engine.work import RANK, clue_prompt, engine_of, random_states, requests, tokens_of
from bench.suites.finding import backend
from bench.suites.gpu.model import Shape
from pss_engine.engine import Engine
from pss_engine.models import LoadedModel
from pss_engine.ops.device import pinned_gbps
from pss_engine.state import StateStore

NUM_SLOTS = 2
NUM_STATES = 4
NUM_BASE_ROWS = 8
STEPS = 120
QUICK_STEPS = 24


def run(model: LoadedModel, shape: Shape, quick: bool) -> Iterator[Measurement]:
    say("bench: states come in")
    states = random_states(model, NUM_STATES)
    state_bytes = sum(pair.a.nbytes + pair.b.nbytes for pair in states[0].factors.values())
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        store = StateStore(Path(folder))
        for state in states:
            store.put(state)
        engine = engine_of(model, num_state_slots=NUM_SLOTS, max_num_seqs=NUM_BASE_ROWS + 1, max_context=1024)
        names = [state.session_id for state in states]
        for name in names:
            engine.add_stored(store, name)
        limit = pinned_gbps(model.device, state_bytes)
        yield from _loads(engine, model, shape, names, state_bytes, limit)
        yield from _beside(engine, model, shape, names, QUICK_STEPS if quick else STEPS)
        engine.check()
        engine.slots.close()


def _loads(
    engine: Engine, model: LoadedModel, shape: Shape, names: Sequence[str], state_bytes: int, limit: float
) -> Iterator[Measurement]:
    """First from disk, then from the host's memory: each round asks for the states that are not resident."""
    prompt, first = clue_prompt(model, 0), {}
    for where in ("from disk", "from host memory"):
        samples, checked = [], True
        for _ in range(1 if where == "from disk" else 3):
            for name in names:
                before = engine.slots.counters.to_dict()
                tokens = tokens_of(engine.generate(requests([prompt], [name], 1)))
                after = engine.slots.counters.to_dict()
                if first.setdefault(name, tokens) != tokens:
                    checked = f"the token of {name} changed after a load"
                if after["loads"] > before["loads"]:
                    samples.append(after["load_seconds"] - before["load_seconds"])
        if samples:
            params = {"model": shape.name, "rank": RANK, "state_bytes": state_bytes, "where": where}
            gbps = state_bytes / sorted(samples)[len(samples) // 2] / 1e9
            yield Measurement(
                "load of a state", params, backend(engine), "seconds", "s", samples, checked,
                gbps=gbps, limit_gbps=limit, device=model.device.type,
            )  # fmt: skip


def _beside(
    engine: Engine, model: LoadedModel, shape: Shape, names: Sequence[str], steps: int
) -> Iterator[Measurement]:
    gaps = {swapping: _gaps(engine, model, names, steps, swapping) for swapping in (False, True)}
    quiet, busy = (percentile(gaps[swapping], 0.99) for swapping in (False, True))
    params = {"model": shape.name, "base_rows": NUM_BASE_ROWS, "steps": steps}
    checked = "a time beside other work: the tokens are checked in the other cases"
    name, kind = backend(engine), model.device.type
    yield Measurement("rows beside loads", params, name, "step_p99", "s", [busy], checked, steps, device=kind)
    yield Measurement(
        "rows beside loads", params, name, "p99_over_quiet", "ratio", [busy / quiet], checked, steps, device=kind
    )


def _gaps(engine: Engine, model: LoadedModel, names: Sequence[str], steps: int, swapping: bool) -> list[float]:
    """Seconds of each step of base rows; while swapping a request of another state waits at all times."""
    base = requests([clue_prompt(model, i) for i in range(NUM_BASE_ROWS)], [None] * NUM_BASE_ROWS, steps)
    for request in base:
        engine.add(request)
    prompt, gaps, asked = clue_prompt(model, 0), [], 0
    while engine.num_unfinished:
        if swapping and engine.num_unfinished == NUM_BASE_ROWS and len(gaps) < steps - 2:
            engine.add(requests([prompt], [names[asked % len(names)]], 1)[0])
            asked += 1
        start = time.perf_counter()
        engine.step()
        gaps.append(time.perf_counter() - start)
    return gaps
