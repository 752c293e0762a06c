"""States of long real dialogues (LoCoMo): a vague follow-up and annotated questions, searched in all dialogues at once.

Nobody prepared these histories: the writer gets the turns, and its own extractor makes the targets from them.
Questions, answers and evidence ids are used only to score what was found.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.finding import QUALITY, Probe, backend, find, next_session, settings, share
from bench.suites.locomo import Dialogue, annotated, cover, load, vague
from pss_engine.engine import Engine
from pss_engine.models import load_model
from pss_engine.retrieval import Corpus
from pss_engine.session import Evidence, SessionRAG
from pss_engine.state import SessionState, StateStore
from pss_engine.writer import History

NUM_QUESTIONS = 10
NO_PEER = "no peer in this suite"


def run(options: Options) -> Iterator[Measurement]:
    dialogues = load(options.data)
    num_written = 2 if options.quick else len(dialogues)
    num_questions = NUM_QUESTIONS // 2 if options.quick else NUM_QUESTIONS
    model = load_model(MODEL, device="cpu")
    covers = [window for dialogue in dialogues for window in cover(dialogue, model.tokenizer)]
    corpus = Corpus(window.passage for window in covers)
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        engine = Engine(model)
        rag = SessionRAG(engine, corpus, StateStore(Path(folder)))
        params, name = {**settings(model, rag), "dialogues": num_written, "passages": len(corpus)}, backend(engine)
        written = [_write(rag, dialogue) for dialogue in dialogues[:num_written]]
        wrong = next_session([state.session_id for state, _ in written])
        kinds = {
            "vague follow-up": [vague(dialogue, covers) for dialogue in dialogues[:num_written]],
            "annotated single-hop questions": [
                probe for dialogue in dialogues[:num_written] for probe in annotated(dialogue, covers, num_questions)
            ],
        }
        for case, probes in kinds.items():
            _, found = find(rag, probes, wrong)
            for way, evidence in found.items():
                yield from _quality(case, {**params, "search": way}, name, probes, evidence)
        yield from _costs(rag, written, kinds["vague follow-up"], params, name)
        engine.check()


def _write(rag: SessionRAG, dialogue: Dialogue) -> tuple[SessionState, float]:
    start = time.monotonic()
    state = rag.write(dialogue.session, History.of(dialogue.messages))
    seconds = time.monotonic() - start
    say(f"bench: state of {dialogue.session}, {state.meta.num_history_tokens} tokens, in {seconds:.0f} s")
    say(f"bench:   target {state.meta.clue!r}, readout {state.meta.readout!r}")
    return state, seconds


def _quality(
    case: str, params: dict[str, Any], name: str, probes: Sequence[Probe], evidence: Sequence[Evidence]
) -> Iterator[Measurement]:
    pairs = list(zip(probes, evidence, strict=True))
    scores = {
        "recall_at_4": [probe.recall(found) for probe, found in pairs],
        "right_dialogue": [_right_share(probe, found) for probe, found in pairs],
    }
    for metric, values in scores.items():
        samples, n = share(values)
        yield Measurement(case, params, name, metric, "share", samples, QUALITY, n)


def _right_share(probe: Probe, found: Evidence) -> float:
    """Share of the passages found that come from the session's own dialogue; 0 where none was found."""
    return sum(passage.doc_id == probe.session for passage in found.passages) / max(1, len(found.passages))


def _costs(
    rag: SessionRAG,
    written: Sequence[tuple[SessionState, float]],
    probes: Sequence[Probe],
    params: dict[str, Any],
    name: str,
) -> Iterator[Measurement]:
    clues = [rag.clues([(probe.session, probe.query)])[0] for probe in probes]
    costs: dict[str, tuple[str, list[float]]] = {
        "write_seconds": ("s", [seconds for _, seconds in written]),
        "history_tokens": ("tokens", [float(state.meta.num_history_tokens or 0) for state, _ in written]),
        "clue_seconds": ("s", [clue.seconds for clue in clues]),
        "clue_kv_peak_bytes": ("bytes", [clue.usage.kv_peak_bytes for clue in clues]),
    }
    config = written[0][0].meta.writer
    settings_of_writer = {"history_updates": "one a chunk", **{n: config[n] for n in ("chunk_tokens", "readout_steps")}}
    for metric, (unit, samples) in costs.items():
        yield Measurement("cost", {**params, **settings_of_writer, "batch": 1}, name, metric, unit, samples, NO_PEER)
