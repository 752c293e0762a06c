"""Seconds and bytes to write states: ours, above the cut, in a batch, against a plain PEFT loop of equal updates."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from bench.environment import peak_gflops
from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites import MODEL, Options
from pss_engine.demo import load_demo
from pss_engine.models import LoadedModel, load_model
from pss_engine.models.source import resolve
from pss_engine.ops import PackedWeight, Products, linear, products
from pss_engine.writer import History, SessionTargets, WriteJob, Writer, WriterConfig, readout_messages
from pss_engine.writer.factors import FactorStack
from pss_engine.writer.objectives import said
from pss_engine.writer.trainer import Trainer

PHASES = ("history", "readout")
MAX_LOSS_DIFFERENCE = 0.02
"""Nats, at any update: both start from the same factors, so that only the order of float32 sums differs."""
BATCHES = (1, 4, 16)
NOT_COMPARED = "a cost of ours alone; its losses are those of write_state"


@dataclass
class Trace:
    """What one write did: (loss, seconds) of each update by phase, the seconds of the whole, and its multiply-adds,
    where they were counted."""

    updates: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    seconds: float = 0.0
    multiply_adds: int = 0

    @classmethod
    def of(cls, write: Callable[[Callable[[str, float], None]], object]) -> Trace:
        trace, start = cls(), time.perf_counter()
        last = [start]

        def on_step(phase: str, loss: float) -> None:
            now = time.perf_counter()
            trace.updates[phase].append((loss, now - last[0]))
            last[0] = now

        write(on_step)
        trace.seconds = time.perf_counter() - start
        return trace

    def losses(self) -> list[float]:
        return [loss for phase in PHASES for loss, _ in self.updates[phase]]


@dataclass(frozen=True)
class Task:
    """One history to be compiled, as both writers get it."""

    model: LoadedModel
    history: History
    targets: SessionTargets
    config: WriterConfig

    def ours(self) -> Trace:
        writer = Writer(self.model, self.config)
        with counted_multiply_adds() as found:
            trace = Trace.of(
                lambda on_step: writer.write(
                    "bench", self.history, self.targets, lambda phase, _done, _total, loss: on_step(phase, loss)
                )
            )
        trace.multiply_adds = found[0]
        return trace

    def peft(self, peer: Any, base: Any) -> Trace:
        """``peer``: bench.peers.peft_writer; ``base``: the model it loaded."""
        tokenizer, config, layers = self.model.tokenizer, self.config, self.model.transformer.session_layers
        stack = FactorStack(self.model.config, layers, config.rank, config.scaling, 1, self.model.device)
        stack.reset(0, config.seed)
        initial_a = {key: a for key, (a, _) in stack.pairs(0).items()}
        chunks = self.history.chunks(tokenizer, config.chunk_tokens)
        prompt = tokenizer.chat(readout_messages(config.instruction))
        positive, negative = (list(said(tokenizer, text)) for text in (self.targets.clue, self.targets.negative_clue))
        return Trace.of(
            lambda on_step: peer.write(base, layers, config, chunks, prompt, positive, negative, initial_a, on_step)
        )


@contextmanager
def counted_multiply_adds() -> Iterator[list[int]]:
    """Of all matrix products meanwhile, as one number: those of the base and those of factors, not attention."""
    found = [0]
    checks = linear.check, products.check

    def of_linear(x: Tensor, weight: PackedWeight, *rest: Any) -> None:
        found[0] += len(x) * weight.in_features * weight.out_features
        checks[0](x, weight, *rest)

    def of_products(wanted: Products) -> None:
        found[0] += sum(left.shape[0] * left.shape[1] * right.shape[1] for _, left, right, _, _ in wanted)
        checks[1](wanted)

    linear.check, products.check = of_linear, of_products
    try:
        yield found
    finally:
        linear.check, products.check = checks


def check(ours: Trace, other: Trace) -> bool | str:
    """True where every loss of both agrees."""
    difference = max(abs(a - b) for a, b in zip(ours.losses(), other.losses(), strict=True))
    if difference <= MAX_LOSS_DIFFERENCE:
        return True
    return f"losses differ by up to {difference:.3f} nats, {MAX_LOSS_DIFFERENCE} allowed"


def run(options: Options) -> Iterator[Measurement]:
    model = load_model(MODEL, device="cpu")
    peer = find_peer("peft_writer")
    base = None if peer is None else peer.load(resolve(MODEL))
    yield from _one(_task(model, options.quick), peer, base)
    yield from _many(model, peer, base, BATCHES[:2] if options.quick else BATCHES, options.quick)
    yield from _cache(model, options.quick)
    yield from _continuation(model, options.quick)
    yield from _memory(options.quick)


def _one(task: Task, peer: Any, base: Any) -> Iterator[Measurement]:
    """The paper's settings, one session: the whole write, and its updates."""
    peak = peak_gflops()
    traces = {"pss_engine": task.ours()}
    if peer is not None:
        traces[peer.NAME] = task.peft(peer, base)
    found = list(traces.values())
    checked = check(*found) if len(found) == 2 else "no peer to compare with"
    params = {
        "model": MODEL,
        "rank": task.config.rank,
        "history_updates": len(found[0].updates["history"]),
        "readout_updates": len(found[0].updates["readout"]),
        "loss_tolerance_nats": MAX_LOSS_DIFFERENCE,
    }
    for name, trace in traces.items():
        counted = 2 * trace.multiply_adds / 1e9
        limits = {"gflops": counted / trace.seconds, "limit_gflops": peak} if counted else {}
        yield Measurement("write_state", params, name, "seconds", "s", [trace.seconds], checked, **limits)
        for phase in PHASES:
            seconds = [duration for _, duration in trace.updates[phase]]
            yield Measurement("write_state", params, name, f"{phase}_update_seconds", "s", seconds, checked)
            final = [trace.updates[phase][-1][0]]
            yield Measurement("write_state", params, name, f"{phase}_final_loss", "nats", final, checked)
    if len(found) == 2:
        ratio = [found[1].seconds / found[0].seconds]
        yield Measurement("write_state", params, "pss_engine", "times_faster_than_peft", "ratio", ratio, checked)
        at_peak = [found[1].seconds / (2 * found[0].multiply_adds / 1e9 / peak)]
        limit = "if the counted products alone ran at the measured peak of multiply-adds"
        yield Measurement("write_state", params, "pss_engine", "times_faster_at_the_peak", "ratio", at_peak, limit)


def _many(model: LoadedModel, peer: Any, base: Any, batches: tuple[int, ...], quick: bool) -> Iterator[Measurement]:
    """Sessions in one batch, with fewer updates: seconds for each of them; the peer writes them one after another."""
    config = WriterConfig(min_lm_steps=1, readout_steps=4 if quick else 16)
    tasks = [Task(model, job.history, job.targets, config) for job in _jobs(max(batches)) if job.targets]
    params = {"model": MODEL, "history_updates": len(tasks[0].history.chunks(model.tokenizer, config.chunk_tokens))}
    params["readout_updates"] = config.readout_steps
    theirs = None if peer is None else tasks[0].peft(peer, base)
    writer = Writer(model, config)
    for count in batches:
        losses: list[float] = []

        def on_step(job: WriteJob, phase: str, done: int, total: int, loss: float, into: list[float] = losses) -> None:
            if job.session_id == "s0":
                into.append(loss)

        start = time.perf_counter()
        writer.write_many(_jobs(count), on_step, max_sessions=count)
        each = (time.perf_counter() - start) / count
        checked = _agree(losses, theirs)
        sized = {**params, "sessions": count}
        yield Measurement("write_batch", sized, "pss_engine", "seconds_per_session", "s", [each], checked)
        if theirs is not None:
            if count == 1:
                yield Measurement(
                    "write_batch", sized, peer.NAME, "seconds_per_session", "s", [theirs.seconds], checked
                )
            ratio = [theirs.seconds / each]
            yield Measurement("write_batch", sized, "pss_engine", "times_faster_than_peft", "ratio", ratio, checked)


def _agree(losses: list[float], theirs: Trace | None) -> bool | str:
    if theirs is None:
        return "no peer to compare with"
    difference = max(abs(a - b) for a, b in zip(losses, theirs.losses(), strict=True))
    return difference <= MAX_LOSS_DIFFERENCE or f"losses differ by up to {difference:.3f} nats"


class Forgetful(Trainer):
    """A trainer that runs the layers below the cut again in every update."""

    def _prepare(self, active: Any) -> None:
        for learner in active:
            learner.prepared.clear()
        super()._prepare(active)


def _cache(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    """A readout update with the hidden state at the cut kept, and computed anew each time."""
    from pss_engine.writer import writer as module

    config = WriterConfig(objective="retrieval_aligned", min_lm_steps=0, readout_steps=4 if quick else 12)
    session = load_demo().sessions[0]
    job = WriteJob("s", History.of(session.turns[:1]), SessionTargets(session.clue, session.negative_clue))
    for name, trainer in (("kept", Trainer), ("computed each time", Forgetful)):
        writer = Writer(model, config)
        kept, module.Trainer = module.Trainer, trainer  # type: ignore[misc]
        try:
            trace = Trace.of(
                lambda on_step, writer=writer: writer.write_job(  # type: ignore[misc]
                    job, lambda phase, _done, _total, loss: on_step(phase, loss)
                )
            )
        finally:
            module.Trainer = kept  # type: ignore[misc]
        seconds = [duration for _, duration in trace.updates["readout"]]
        params = {"model": MODEL, "hidden_at_the_cut": name}
        yield Measurement("cut_cache", params, "pss_engine", "readout_update_seconds", "s", seconds, NOT_COMPARED)


def _continuation(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    """The last quarter of a history comes later: going on from the state of the rest, against writing all again."""
    from pss_engine.session.writing import CONTINUE_STEPS

    session = load_demo().sessions[1]
    targets = SessionTargets(session.clue, session.negative_clue)
    at = 3 * len(session.turns) // 4
    config = WriterConfig(min_lm_steps=1, readout_steps=4) if quick else WriterConfig()
    writer = Writer(model, config)
    before = SessionTargets(session.negative_clue, session.clue)
    first = writer.write("s", History.of(session.turns[:at]), before)
    short = replace(config, min_lm_steps=0, readout_steps=min(config.readout_steps, CONTINUE_STEPS))
    ways = {
        "going on": WriteJob("s", History.of(session.turns[at:]), targets, first, short),
        "writing all again": WriteJob("s", History.of(session.turns), targets),
    }
    for way, job in ways.items():
        trace = Trace.of(
            lambda on_step, job=job: writer.write_job(job, lambda phase, _d, _t, loss: on_step(phase, loss))  # type: ignore[misc]
        )
        params = {"model": MODEL, "way": way}
        yield Measurement("continuation", params, "pss_engine", "seconds", "s", [trace.seconds], NOT_COMPARED)
        final = [trace.updates["readout"][-1][0]]
        yield Measurement("continuation", params, "pss_engine", "readout_final_loss", "nats", final, NOT_COMPARED)


PROBE = """
import json, re, sys
def peak():  # of this program: what getrusage tells begins with the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
bare = peak()
from bench.suites import writer
from pss_engine.models import load_model
model = load_model(writer.MODEL, device="cpu")
loaded = peak()
from pss_engine.writer import Writer, WriterConfig
count = int(sys.argv[1])
Writer(model, WriterConfig(min_lm_steps=2, readout_steps=2)).write_many(writer._jobs(count), max_sessions=count)
print(json.dumps({"bare": bare, "loaded": loaded, "written": peak()}))
"""


def _memory(quick: bool) -> Iterator[Measurement]:
    """Peak memory of a process that loads the model and writes, beyond that of a bare interpreter."""
    for count in (1,) if quick else (1, 16):
        ran = subprocess.run([sys.executable, "-c", PROBE, str(count)], capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        params = {"model": MODEL, "sessions": count}
        for metric, name in (("peak_bytes_loading", "loaded"), ("peak_bytes_writing", "written")):
            value = [found[name] - found["bare"]]
            yield Measurement("memory", params, "pss_engine", metric, "bytes", value, NOT_COMPARED)


def _jobs(count: int) -> list[WriteJob]:
    """Sessions of about four chunks: parts of the demo's histories, each with its session's clues."""
    sessions = load_demo().sessions
    jobs = []
    for index in range(count):
        session, begin = sessions[index % len(sessions)], 2 * (index // len(sessions))
        targets = SessionTargets(session.clue, session.negative_clue)
        jobs.append(WriteJob(f"s{index}", History.of(session.turns[begin : begin + 8]), targets))
    return jobs


def _task(model: LoadedModel, quick: bool) -> Task:
    session = load_demo().sessions[0]
    targets = SessionTargets(session.clue, session.negative_clue)
    if quick:
        return Task(model, History.of(session.turns[:8]), targets, WriterConfig(min_lm_steps=1, readout_steps=6))
    return Task(model, session.history, targets, WriterConfig())
