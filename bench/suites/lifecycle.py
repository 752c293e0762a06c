"""The path of ``pss demo``: three bundled histories to states, follow-ups to clues, evidence and answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.finding import QUALITY, Probe, backend, find, gold_among, next_session, settings, share
from pss_engine.demo import DemoSession, load_demo
from pss_engine.engine import Engine
from pss_engine.models import load_model
from pss_engine.retrieval import Corpus
from pss_engine.session import Answer, Clue, SessionRAG
from pss_engine.state import SessionState, StateStore

NUM_HELPS = 7


def run(options: Options) -> Iterator[Measurement]:
    demo, model = load_demo(), load_model(MODEL, device="cpu")
    engine = Engine(model)
    corpus = Corpus.load(demo.corpus_path, model.tokenizer.hf)
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        rag = SessionRAG(engine, corpus, StateStore(Path(folder)))
        params, name = settings(model, rag), backend(engine)
        sessions = demo.sessions[:2] if options.quick else demo.sessions
        written = [_write(rag, session) for session in sessions]
        ids = [session.session_id for session in sessions]
        probes = [
            Probe(followup.session_id, followup.query, (gold_among(corpus, followup.gold),))
            for followup in demo.followups
            if followup.session_id in ids
        ]
        clues, found = find(rag, probes, next_session(ids))
        for way, evidence in found.items():
            samples, n = share([probe.recall(e) for probe, e in zip(probes, evidence, strict=True)])
            where = {**params, "passages": len(corpus), "search": way}
            yield Measurement("gold passage in the top k", where, name, "gold_found", "share", samples, QUALITY, n)
        answers = [rag.ask(probe.session, probe.query) for probe in probes]
        engine.check()
        yield from _query_costs(answers, check(clues, answers), {**params, "batch": 1}, name)
        updates = {"readout_updates": written[0][0].meta.writer["readout_steps"]}
        costs: dict[str, tuple[str, list[float]]] = {
            "seconds": ("s", [seconds for _, seconds in written]),
            "history_tokens": ("tokens", [float(state.meta.num_history_tokens or 0) for state, _ in written]),
            "state_bytes": ("bytes", [state.num_bytes for state, _ in written]),
        }
        for metric, (unit, samples) in costs.items():
            yield Measurement(
                "write a state", {**params, **updates}, name, metric, unit, samples, "no peer in this suite"
            )
    yield _help()


def _help() -> Measurement:
    """Of whole processes: what a user waits for before the first line."""
    seconds = []
    for _ in range(NUM_HELPS):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "pss_engine.cli", "--help"], capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
    checked = (done.returncode == 0 and "Usage" in done.stdout) or f"it ended with {done.returncode}"
    return Measurement("pss --help", {}, "python", "seconds", "s", seconds, checked)


def _write(rag: SessionRAG, session: DemoSession) -> tuple[SessionState, float]:
    start = time.monotonic()
    state = rag.write(session.session_id, session.history)
    seconds = time.monotonic() - start
    say(f"bench: state of {session.session_id} in {seconds:.0f} s, readout {state.meta.readout!r}")
    return state, seconds


def check(batched: Sequence[Clue], single: Sequence[Answer]) -> bool | str:
    """True where every clue of the batch, each row with its own state, equals the clue of its query asked alone."""
    differing = sum(clue.text != answer.clue.text for clue, answer in zip(batched, single, strict=True))
    return not differing or f"{differing} of {len(batched)} batched clues differ from those asked one by one"


def _query_costs(
    answers: Sequence[Answer], checked: bool | str, params: dict[str, Any], name: str
) -> Iterator[Measurement]:
    costs: dict[str, tuple[str, list[float]]] = {
        "clue_seconds": ("s", [answer.clue.seconds for answer in answers]),
        "retrieve_seconds": ("s", [answer.evidence.seconds for answer in answers]),
        "answer_seconds": ("s", [answer.answer_seconds for answer in answers]),
        "query_seconds": ("s", [answer.seconds for answer in answers]),
        "kv_peak_bytes": ("bytes", [answer.usage.kv_peak_bytes for answer in answers]),
        "kv_cumulative_bytes": ("bytes", [answer.usage.kv_cumulative_bytes for answer in answers]),
    }
    for metric, (unit, samples) in costs.items():
        yield Measurement("one query", params, name, metric, unit, samples, checked)
