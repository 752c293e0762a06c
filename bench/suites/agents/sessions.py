"""Where both papers meet: agents whose Retriever asks a session's state for its clue, on the demo's follow-ups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.agents.service import Agents
from bench.suites.finding import QUALITY, backend, gold_among, share
from pss_engine.agents import AgentRequest, Limits, as_arm
from pss_engine.agents.record import QueryRecord
from pss_engine.config import EngineConfig
from pss_engine.demo import FollowUp, load_demo
from pss_engine.engine import Engine
from pss_engine.models import LoadedModel, load_model
from pss_engine.retrieval import Corpus, Encoder
from pss_engine.writer import Writer, WriterConfig

ARMS = ("rag", "coa-nokv", "coa-pss")


def run(options: Options) -> Iterator[Measurement]:
    config = WriterConfig(min_lm_steps=1, readout_steps=24) if options.quick else WriterConfig()
    yield from measure(load_model(MODEL, device="cpu"), Encoder(), 1 if options.quick else 3, config, Limits())


def measure(
    model: LoadedModel, encoder: Encoder, num_sessions: int, config: WriterConfig, limits: Limits
) -> Iterator[Measurement]:
    """Rows of all arms over the follow-ups of the demo's first sessions."""
    demo = load_demo()
    sessions = demo.sessions[:num_sessions]
    engine = Engine(model, EngineConfig(num_state_slots=len(sessions), audit_steps=16))
    for session in sessions:
        say(f"bench: writing the state of {session.session_id}")
        engine.add_state(Writer(model, config).write(session.session_id, session.history))
    passages = list(Corpus.load(demo.corpus_path, model.tokenizer.hf))
    agents = Agents.over(engine, encoder, passages, limits)
    written = {session.session_id for session in sessions}
    asked = [followup for followup in demo.followups if followup.session_id in written]
    golds = [gold_among(passages, followup.gold) for followup in asked]
    params = {"model": model.name, "followups": len(asked), "encoder": encoder.name}
    for arm in ARMS:
        say(f"bench: {len(asked)} follow-ups in arm {arm}")
        records = [agents.service.answer_now(_request(followup, arm)) for followup in asked]
        yield from _rows(arm, golds, records, params, backend(engine))
    agents.close()


def _request(followup: FollowUp, arm: str) -> AgentRequest:
    number = f"{followup.id}-{followup.session_id}"
    return as_arm(AgentRequest(followup.query, number, session=followup.session_id), arm)


def _rows(
    arm: str, golds: Sequence[frozenset[str]], records: Sequence[QueryRecord], params: dict[str, object], name: str
) -> Iterator[Measurement]:
    told = {**params, "arm": arm, "failed": sum(record.failed for record in records)}
    case = "follow-ups of sessions"
    found = [float(bool(gold & _first_found(record))) for gold, record in zip(golds, records, strict=True)]
    samples, n = share(found)
    yield Measurement(case, told, name, "gold_retrieved", "share", samples, QUALITY, n)
    for metric in ("kv_peak_bytes", "kv_cumulative_bytes"):
        values = [float(getattr(record.usage, metric)) for record in records]
        yield Measurement(case, told, name, metric, "bytes", values, QUALITY, len(values))
    calls = [float(len(record.calls)) for record in records]
    yield Measurement(case, told, name, "num_calls", "steps", calls, QUALITY, len(calls))


def _first_found(record: QueryRecord) -> frozenset[str]:
    """What the first search of a query found."""
    return frozenset(next((step.passage_ids for step in record.steps if step.passage_ids), ()))
