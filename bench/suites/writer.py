"""Seconds to write one state: ours, above the cut on cached activations, against a plain PEFT loop of equal updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites import MODEL, Options
from pss_engine.demo import load_demo
from pss_engine.models import LoadedModel, load_model
from pss_engine.models.source import resolve
from pss_engine.writer import History, SessionTargets, Writer, WriterConfig, readout_messages
from pss_engine.writer.factors import TrainableFactors

PHASES = ("history", "readout")
MAX_LOSS_DIFFERENCE = 0.02
"""Nats, at any update: both start from the same factors, so that only the order of float32 sums differs."""


@dataclass
class Trace:
    """What one write did: (loss, seconds) of each update by phase, and the seconds of the whole."""

    updates: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    seconds: float = 0.0

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
        return Trace.of(
            lambda on_step: writer.write(
                "bench", self.history, self.targets, lambda phase, _done, _total, loss: on_step(phase, loss)
            )
        )

    def peft(self, peer: Any, base: Any) -> Trace:
        """``peer``: bench.peers.peft_writer; ``base``: the model it loaded."""
        tokenizer, config, layers = self.model.tokenizer, self.config, self.model.transformer.session_layers
        factors = TrainableFactors(
            self.model.config, layers, config.rank, config.scaling, config.seed, self.model.device
        )
        initial_a = {key: a.detach() for key, (a, _) in factors.pairs.items()}
        chunks = self.history.chunks(tokenizer, config.chunk_tokens)
        prompt = tokenizer.chat(readout_messages(config.instruction))
        positive, negative = (self._clue(text) for text in (self.targets.clue, self.targets.negative_clue))
        return Trace.of(
            lambda on_step: peer.write(base, layers, config, chunks, prompt, positive, negative, initial_a, on_step)
        )

    def _clue(self, text: str) -> list[int]:
        tokenizer = self.model.tokenizer
        assert tokenizer.eos_token_id is not None
        return [*tokenizer.encode(text.strip()), tokenizer.eos_token_id] if text.strip() else []


def check(ours: Trace, other: Trace) -> bool | str:
    """True where every loss of both agrees."""
    difference = max(abs(a - b) for a, b in zip(ours.losses(), other.losses(), strict=True))
    if difference <= MAX_LOSS_DIFFERENCE:
        return True
    return f"losses differ by up to {difference:.3f} nats, {MAX_LOSS_DIFFERENCE} allowed"


def run(options: Options) -> Iterator[Measurement]:
    task = _task(options.quick)
    writers: dict[str, Callable[[], Trace]] = {"pss_engine": task.ours}
    peer = find_peer("peft_writer")
    if peer is not None:
        base = peer.load(resolve(MODEL))
        writers[peer.NAME] = lambda: task.peft(peer, base)
    traces: dict[str, list[Trace]] = {name: [] for name in writers}
    for repeat in range(1 if options.quick else 3):
        for name in sorted(writers, reverse=bool(repeat % 2)):
            traces[name].append(writers[name]())
    first = [found[0] for found in traces.values()]
    checked = check(*first) if len(first) == 2 else "no peer to compare with"
    params = {
        "model": MODEL,
        "rank": task.config.rank,
        "history_updates": len(first[0].updates["history"]),
        "readout_updates": len(first[0].updates["readout"]),
        "loss_tolerance_nats": MAX_LOSS_DIFFERENCE,
    }
    for name, found in traces.items():
        yield Measurement("write_state", params, name, "seconds", "s", [trace.seconds for trace in found], checked)
        for phase in PHASES:
            updates = [update for trace in found for update in trace.updates[phase]]
            seconds = [duration for _, duration in updates]
            yield Measurement("write_state", params, name, f"{phase}_update_seconds", "s", seconds, checked)
            final = [trace.updates[phase][-1][0] for trace in found]
            yield Measurement("write_state", params, name, f"{phase}_final_loss", "nats", final, checked)


def _task(quick: bool) -> Task:
    model = load_model(MODEL, device="cpu")
    session = load_demo().sessions[0]
    targets = SessionTargets(session.clue, session.negative_clue)
    if quick:
        return Task(model, History.of(session.turns[:8]), targets, WriterConfig(min_lm_steps=1, readout_steps=6))
    return Task(model, session.history, targets, WriterConfig())
