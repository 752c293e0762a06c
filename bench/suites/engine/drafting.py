"""Steps of the demo's clues with drafts from their states' readouts, and without."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.engine.work import differing, engine_of, tokens_of
from bench.suites.finding import backend
from pss_engine.demo import DemoSession, FollowUp, load_demo
from pss_engine.engine import Request, SamplingParams
from pss_engine.models import LoadedModel
from pss_engine.session import SessionRAG
from pss_engine.state import SessionState, StateStore
from pss_engine.writer import INSTRUCTION, Writer, WriterConfig, clue_messages

LIMITS = (0, 4, 8, 16)
MAX_CLUE_TOKENS = 64
STORE_VARIABLE = "PSS_STORE"
QUICK = WriterConfig(chunk_tokens=64, min_lm_steps=1, readout_steps=24)


def run(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    demo = load_demo()
    sessions = demo.sessions[:1] if quick else demo.sessions
    states, origin = _states(model, sessions, quick)
    asked = [f for f in demo.followups if f.session_id in {s.session_id for s in states}]
    work = [_request(states, followup) for followup in asked]
    plain: list[list[int]] = []
    for limit in LIMITS:
        engine = engine_of(model, states, max_draft_tokens=limit)
        engine.generate(work[:1])
        start = time.perf_counter()
        outputs = engine.generate(work)
        seconds = time.perf_counter() - start
        tokens = tokens_of(outputs)
        plain = plain or tokens
        checked = differing(tokens, plain) if limit else "what the drafted runs are compared with"
        steps = [output.drafts.num_steps for output in outputs]
        params = {"model": MODEL, "clues": len(work), "states": origin, "max_draft_tokens": limit}
        saved = 1 - sum(steps) / sum(map(len, plain))
        drafted, accepted = (
            sum(getattr(output.drafts, name) for output in outputs) for name in ("drafted_tokens", "accepted_tokens")
        )
        name, case = backend(engine), "clues of the demo in one batch"
        yield Measurement(case, params, name, "tokens_per_clue", "tokens", [len(t) for t in tokens], checked)
        yield Measurement(case, params, name, "steps_per_clue", "steps", steps, checked)
        yield Measurement(case, params, name, "steps_saved", "share", [saved], checked, len(work))
        yield Measurement(
            case, params, name, "drafts_accepted", "share", [accepted / max(1, drafted)], checked, len(work)
        )
        yield Measurement(case, params, name, "seconds", "s", [seconds], checked, len(work))
        engine.check()


def _states(model: LoadedModel, sessions: tuple[DemoSession, ...], quick: bool) -> tuple[list[SessionState], str]:
    """From the store that the environment names, where it has them for this model; else written now."""
    if folder := os.environ.get(STORE_VARIABLE):
        store = StateStore(folder)
        found = [store.get(session.session_id) for session in sessions if session.session_id in store]
        if len(found) == len(sessions) and all(s.meta.model_fingerprint == model.fingerprint for s in found):
            return found, "from a store"
        say(f"bench: the store of ${STORE_VARIABLE} has not all demo states for this model; they are written")
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as temporary:
        rag = SessionRAG(engine_of(model), None, StateStore(Path(temporary)), max_clue_tokens=MAX_CLUE_TOKENS)
        writer = Writer(model, QUICK if quick else None)
        written = []
        for session in sessions:
            start = time.perf_counter()
            written.append(rag.write(session.session_id, session.history, writer=writer))
            say(f"bench: state of {session.session_id} in {time.perf_counter() - start:.0f} s")
        return written, f"written in this run, {writer.config.readout_steps} readout updates"


def _request(states: list[SessionState], followup: FollowUp) -> Request:
    state = next(s for s in states if s.session_id == followup.session_id)
    instruction = str(state.meta.writer.get("instruction", INSTRUCTION))
    params = SamplingParams(max_new_tokens=MAX_CLUE_TOKENS)
    return Request(clue_messages(instruction, followup.query), params, session=state.session_id)
