"""What counting costs: the ledger's part of a decode step at 32 rows, and that of proving the books now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.engine.work import PROMPT_TOKENS, clue_prompt, engine_of, requests
from bench.suites.finding import backend
from bench.timing import quantiles
from pss_engine.config import EngineConfig
from pss_engine.kv import KVGeometry, KVLedger
from pss_engine.models import LoadedModel

NUM_ROWS = 32
NUM_STEPS = 48
REPEATS = 30
CHANGES = ("open", "allocated", "reused", "stored", "released", "preempted", "close")


class Recorder(KVLedger):
    """A ledger that remembers what it was told, so that it can be told again."""

    def __init__(self, geometry: KVGeometry) -> None:
        super().__init__(geometry)
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._inside = False
        for name in CHANGES:
            setattr(self, name, self._remembering(name))

    def _remembering(self, name: str) -> Any:
        change = getattr(super(), name)

        def remember(*arguments: Any, **named: Any) -> Any:
            is_outer, self._inside = not self._inside, True
            if is_outer:  # what a change itself brings about comes again when it is told
                self.told.append((name, tuple(_copy(argument) for argument in arguments), named))
            result = change(*arguments, **named)
            self._inside = not is_outer
            return result

        return remember


def run(model: LoadedModel) -> Iterator[Measurement]:
    say(f"bench: what counting costs at {NUM_ROWS} rows")
    engine = engine_of(model, max_num_seqs=NUM_ROWS, prefix_caching=True, audit_steps=0)
    engine.memory.ledger = recorder = Recorder(engine.memory.geometry)
    prompts = [clue_prompt(model, i) for i in range(NUM_ROWS)]
    for request in requests(prompts, [None] * NUM_ROWS, 2 * NUM_STEPS):
        engine.add(request)
    while engine.num_running < NUM_ROWS:
        engine.step()
    begin, steps = len(recorder.told), []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - start)
    end = len(recorder.told)
    engine.check()
    checks = [_seconds(engine.check) for _ in range(REPEATS)]
    ledger = [_replay(recorder, begin, end) / NUM_STEPS for _ in range(REPEATS)]
    checked = _same(recorder, end) or "the replayed ledger differs from the engine's"
    audits = [seconds / EngineConfig().audit_steps for seconds in checks]
    step = quantiles(steps)[1]
    params = {"model": MODEL, "rows": NUM_ROWS, "prompt_tokens": PROMPT_TOKENS, "steps": NUM_STEPS}
    measured: dict[str, tuple[str, Sequence[float]]] = {
        "decode_step": ("s", steps),
        "ledger": ("s", ledger),
        "proof_every_256_steps": ("s", audits),
        "ledger_share": ("share", [seconds / step for seconds in ledger]),
        "proof_share": ("share", [seconds / step for seconds in audits]),
    }
    for metric, (unit, samples) in measured.items():
        yield Measurement("cost of a decode step", params, backend(engine), metric, unit, samples, checked)
    while engine.num_unfinished:
        engine.step()


def _replay(recorder: Recorder, begin: int, end: int) -> float:
    """Seconds of the changes of the recorded steps, told to a fresh ledger that knows all before them."""
    ledger = _told(recorder, begin)
    changes = [(getattr(ledger, name), arguments, named) for name, arguments, named in recorder.told[begin:end]]
    start = time.perf_counter()
    for change, arguments, named in changes:
        change(*arguments, **named)
    return time.perf_counter() - start


def _same(recorder: Recorder, end: int) -> bool:
    return _told(recorder, end).charges("call_id") == recorder.charges("call_id")


def _told(recorder: Recorder, end: int) -> KVLedger:
    ledger = KVLedger(recorder.geometry)
    for name, arguments, named in recorder.told[:end]:
        getattr(ledger, name)(*arguments, **named)
    return ledger


def _seconds(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _copy(argument: Any) -> Any:
    """Lists of blocks as they are now."""
    if isinstance(argument, dict):
        return {name: list(blocks) for name, blocks in argument.items()}
    return list(argument) if isinstance(argument, list) else argument
