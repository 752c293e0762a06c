"""What resident states cost rows that use none: two engines take steps in turn, one with states and one without."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.engine.work import (
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
from pss_engine.engine import Engine, Request, RequestOutput
from pss_engine.models import LoadedModel

NUM_STATES = 8
NUM_ROWS = 4


def run(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    num_steps, num_rounds = (24, 2) if quick else (64, 3)
    states = random_states(model, NUM_STATES)
    idle, bare = engine_of(model, states, num_state_slots=NUM_STATES), engine_of(model)
    prompts = [clue_prompt(model, i) for i in range(NUM_ROWS)]
    tokens_of(idle.generate(requests([prompts[0]] * NUM_STATES, [s.session_id for s in states], 1)))
    if not all(idle.slots.resident(state.digest) for state in states):
        raise RuntimeError("the states of the idle engine are not resident")
    calls_before = idle.counters.num_adapter_calls
    work = requests(prompts, [None] * NUM_ROWS, num_steps)
    engines = {"idle": idle, "bare": bare}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    checked: bool | str = True
    for _ in range(num_rounds):
        outputs = _in_turn(engines, work, seconds)
        found = differing(*(tokens_of(outputs[name]) for name in ("idle", "bare")))
        checked = checked if found is True else found
    if idle.counters.num_adapter_calls != calls_before:
        raise RuntimeError("an adapter was launched for rows without a state")
    params = {
        "model": MODEL,
        "rank": RANK,
        "rows": NUM_ROWS,
        "prompt_tokens": PROMPT_TOKENS,
        "resident_states": NUM_STATES,
    }
    name, case = backend(idle), "base rows beside idle states"
    yield Measurement(case, params, name, "step_with_states", "s", seconds["idle"], checked)
    yield Measurement(case, params, name, "step_without_states", "s", seconds["bare"], checked)
    overhead = [a / b - 1 for a, b in zip(seconds["idle"], seconds["bare"], strict=True)]
    yield Measurement(case, params, name, "overhead_of_a_step", "share", overhead, checked)


def _in_turn(
    engines: dict[str, Engine], work: list[Request], seconds: dict[str, list[float]]
) -> dict[str, list[RequestOutput]]:
    """Outputs by engine, in order of the requests. One step of each in turn; prefill is not counted."""
    ids = {name: [engine.add(request) for request in work] for name, engine in engines.items()}
    done: dict[str, dict[str, RequestOutput]] = {name: {} for name in engines}
    step = 0
    while any(engine.num_unfinished for engine in engines.values()):
        for name in sorted(engines, reverse=bool(step % 2)):
            start = time.perf_counter()
            outputs = engines[name].step()
            if step:
                seconds[name].append(time.perf_counter() - start)
            done[name].update({output.request_id: output for output in outputs})
        step += 1
    return {name: [done[name][request_id] for request_id in ids[name]] for name in engines}
