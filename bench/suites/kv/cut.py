"""Eight sessions with one instruction that live together: what they hold with the cut, and without it.

Without the cut the prefix cache works as elsewhere: keyed by state and tokens, so that no session finds what another
has stored. A scope for each session makes ours do that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.environment import say
from bench.pictures import timeline_of
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.engine.prefixes import GUIDE, NUM_SESSIONS
from bench.suites.engine.work import QUESTIONS, RANK, differing, engine_of, random_states
from bench.suites.finding import backend
from pss_engine.engine import Request, RequestOutput, SamplingParams
from pss_engine.kv.timeline import Curves, read_curves
from pss_engine.models import LoadedModel
from pss_engine.state import SessionState
from pss_engine.writer import INSTRUCTION, clue_messages

NEW_TOKENS = 48


def run(model: LoadedModel, files: Path | None) -> Iterator[Measurement]:
    """``files``: where the timeline with the cut is kept, for the picture of the report."""
    say(f"bench: {NUM_SESSIONS} sessions with one instruction, with the cut and without")
    states = random_states(model, NUM_SESSIONS)
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        with_cut = timeline_of("kv", files) if files else Path(folder) / "with.jsonl"
        runs = {
            "without": _live_together(model, states, Path(folder) / "without.jsonl", cut=False),
            "with": _live_together(model, states, with_cut, cut=True),
        }
    said = {name: [output.token_ids for output in outputs] for name, (outputs, _, _) in runs.items()}
    checked = differing(said["with"], said["without"])
    figures = {name: _figures(outputs, curves) for name, (outputs, curves, _) in runs.items()}
    common = runs["with"][0][-1].usage.cached_shared_tokens
    params = {"model": MODEL, "rank": RANK, "sessions": NUM_SESSIONS, "common_tokens": common, "new_tokens": NEW_TOKENS}
    for name, metrics in figures.items():
        for metric, value in metrics.items():
            where = {**params, "cut": name}
            yield Measurement(
                "sessions that live together", where, runs[name][2], metric, "bytes", [value], checked, NUM_SESSIONS
            )
    for metric, value in figures["with"].items():
        share = 1 - value / figures["without"][metric]
        case = "sessions that live together: saved by the cut"
        yield Measurement(case, params, runs["with"][2], metric, "share", [share], checked, NUM_SESSIONS)


def _live_together(
    model: LoadedModel, states: list[SessionState], timeline: Path, cut: bool
) -> tuple[list[RequestOutput], Curves, str]:
    """The first session begins, the others come when its prompt is stored; all decode together."""
    engine = engine_of(
        model,
        states,
        num_state_slots=len(states) + 1,
        prefix_caching=True,
        kv_timeline=str(timeline),
        audit_steps=8,
    )
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for state in states:
        engine.pin_state(state.session_id)
    requests = [
        Request(
            model.tokenizer.chat(clue_messages(GUIDE + INSTRUCTION, QUESTIONS[i % len(QUESTIONS)])),
            params,
            session=state.session_id,
            agent="clue",
            scope="" if cut else state.session_id,
        )
        for i, state in enumerate(states)
    ]
    ids = [engine.add(requests[0])]
    while engine.counters.num_generated_tokens < 1:
        engine.step()
    ids += [engine.add(request) for request in requests[1:]]
    done: dict[str, RequestOutput] = {}
    while engine.num_unfinished:
        done.update({output.request_id: output for output in engine.step()})
    engine.check()
    if engine.counters.num_audit_alarms:
        raise RuntimeError(f"the KV books did not balance {engine.counters.num_audit_alarms} times")
    return [done[request_id] for request_id in ids], read_curves(timeline, "session"), backend(engine)


def _figures(outputs: list[RequestOutput], curves: Curves) -> dict[str, int]:
    usages = [output.usage for output in outputs]
    return {
        "held_at_the_peak": curves.peak_bytes,
        "newly_allocated": sum(usage.kv_allocated_bytes for usage in usages),
        "sum_of_logical_peaks": sum(usage.kv_peak_bytes for usage in usages),
    }
