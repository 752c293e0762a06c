"""What states say, by objective and by precision: how much of the target, and whether it finds the gold passage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.finding import QUALITY, share
from pss_engine.config import EngineConfig
from pss_engine.demo import Demo, load_demo
from pss_engine.engine import Engine, SamplingParams
from pss_engine.models import LoadedModel, load_model
from pss_engine.retrieval import Corpus
from pss_engine.session import SessionRAG, record_readout
from pss_engine.session.readout import key_terms
from pss_engine.state import SessionState, StateStore
from pss_engine.state.adapter import state_files
from pss_engine.state.precision import rounded
from pss_engine.writer import History, SessionTargets, WriteJob, Writer, WriterConfig
from pss_engine.writer.config import OBJECTIVES, PRECISIONS

TOP_K = 4
MAX_READOUT_TOKENS = 48


def run(options: Options) -> Iterator[Measurement]:
    model, demo = load_model(MODEL, device="cpu"), load_demo()
    settings = {"min_lm_steps": 1, "readout_steps": 4} if options.quick else {}
    judge = Judge(model, demo)
    resident = Judge(model, demo, "int8")
    for objective in OBJECTIVES:
        if objective == "records":  # learns records, not a clue of the session
            continue
        # with the residual, so that each precision is rounded from what was learned
        config = WriterConfig(objective=objective, precision="fp16_residual", **settings)
        written = Writer(model, config).write_many(_jobs(demo, options.quick), max_sessions=len(demo.sessions))
        states = [result.state for result in written if result.state is not None]
        params = {"model": MODEL, "k": TOP_K, "objective": objective}
        yield from judge.rows("objective", params, [_in("bf16", state) for state in states])
        if objective == "retrieval_aligned":
            for precision in PRECISIONS:
                params = {"model": MODEL, "k": TOP_K, "precision": precision}
                yield from judge.rows("precision", params, [_in(precision, state) for state in states])
            params = {"model": MODEL, "k": TOP_K, "kept_in": "int8"}
            yield from resident.rows("resident states", params, [_in("bf16", state) for state in states])


class Judge:
    """Asks the demo's follow-ups with given states."""

    def __init__(self, model: LoadedModel, demo: Demo, state_dtype: str = "auto") -> None:
        self._demo, self._corpus = demo, Corpus.load(demo.corpus_path, model.tokenizer.hf)
        self._engine = Engine(model, EngineConfig(num_state_slots=len(demo.sessions), state_dtype=state_dtype))

    def rows(self, case: str, params: dict[str, object], states: Sequence[SessionState]) -> Iterator[Measurement]:
        sampling = SamplingParams(max_new_tokens=MAX_READOUT_TOKENS)
        targets = {session.session_id: session.clue for session in self._demo.sessions}
        with tempfile.TemporaryDirectory() as folder:
            store = StateStore(Path(folder))
            rag = SessionRAG(self._engine, self._corpus, store, top_k=TOP_K, max_clue_tokens=MAX_READOUT_TOKENS)
            read_out = [record_readout(self._engine, state, sampling) for state in states]
            for state in read_out:
                store.put(state)
            asks = [(followup.session_id, followup.query) for followup in self._demo.followups]
            clues = rag.clues(asks)
            found = rag.retrieve([[clue.text] for clue in clues])
        recalls = {
            "readout_target_terms": [_recall(state.meta.readout, targets[state.session_id]) for state in read_out],
            "clue_target_terms": [
                _recall(clue.text, targets[session]) for clue, (session, _) in zip(clues, asks, strict=True)
            ],
            "gold_in_top_4": [
                float(any(hit.passage_id in followup.gold for hit in evidence.hits))
                for followup, evidence in zip(self._demo.followups, found, strict=True)
            ],
        }
        for metric, values in recalls.items():
            samples, n = share(values)
            yield Measurement(case, params, "pss_engine", metric, "share", samples, QUALITY, n)
        sizes = [float(sum(map(len, state_files(state).values()))) for state in read_out]
        yield Measurement(case, params, "pss_engine", "file_bytes", "bytes", sizes, QUALITY)


def _recall(text: str, target: str) -> float:
    wanted, said = key_terms(target), set(key_terms(text))
    return sum(term in said for term in wanted) / len(wanted)


def _in(precision: str, state: SessionState) -> SessionState:
    """The state as another precision keeps it."""
    seed = state.meta.seed or 0
    meta = replace(state.meta, writer={**state.meta.writer, "precision": precision})
    factors = rounded(state.tensors(), precision, seed)
    return SessionState.from_tensors(state.session_id, factors, state.config.lora_alpha, meta=meta)


def _jobs(demo: Demo, quick: bool) -> list[WriteJob]:
    """The demo's sessions; the fields of the multi-field objectives are parts of their clues."""
    jobs = []
    for session in demo.sessions:
        parts = [part.strip() for part in session.clue.split(",")]
        targets = SessionTargets(
            session.clue,
            session.negative_clue,
            topic=session.session_id,
            entities=tuple(parts[1:3]),
            decision=parts[0],
            query=session.clue,
        )
        turns = session.turns[:6] if quick else session.turns
        jobs.append(WriteJob(session.session_id, History.of(turns), targets))
    return jobs
