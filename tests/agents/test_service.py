"""The service: arms over the same endpoints, states as memory, spans for OpenTelemetry."""

from __future__ import annotations

import asyncio

import pytest

from pss_engine.agents import ARMS, AgentRequest, Clues, EngineEndpoint, Limits, as_arm
from pss_engine.agents.prompts import NAMES, SETS, render, template
from pss_engine.agents.spans import export
from pss_engine.config import EngineConfig
from pss_engine.engine import AsyncEngine, Engine
from pss_engine.errors import ConfigError, RequestRejected
from pss_engine.writer import History, SessionTargets, Writer, WriterConfig
from tests.agents.scripted import GOOD, Scripted, always, service_of
from tests.agents.test_pipeline import QUESTION, REQUEST
from tests.tiny import tiny_model

CONFIG = WriterConfig(rank=8, alpha=64.0, min_lm_steps=1, readout_steps=40, readout_learning_rate=1e-2)


def asked(arm, script=None, **limits):
    endpoint = Scripted(script or always())
    service = service_of(endpoint, **limits)
    return service.answer_now(as_arm(REQUEST, arm)), endpoint, service


def test_flat_reads_nothing_and_rag_reads_all_in_one_call():
    flat, endpoint, service = asked("flat")
    assert endpoint.agents() == ["reasoner", "answer_critic"]
    assert service.counters.num_evidence_searches == 0
    assert endpoint.calls[0].messages[0]["content"].startswith(f"Question: {QUESTION}")
    rag, endpoint, service = asked("rag", rag_top_k=2)
    assert endpoint.agents() == ["reasoner", "answer_critic"]
    assert endpoint.calls[0].messages[0]["content"].count("[") == 2 == len(rag.steps[0].passage_ids)
    assert flat.outcome == rag.outcome == "accepted"
    assert flat.usage.kv_peak_bytes < rag.usage.kv_peak_bytes


def test_a_verdict_is_recorded_for_arms_that_have_no_loop():
    record, endpoint, service = asked("rag", always(answer_critic="0.1"))
    assert (record.outcome, record.steps[-1].score) == ("accepted", 0.1)
    assert service.counters.num_rejections == 1 and len(endpoint.calls) == 2
    record, _, _ = asked("rag", always(answer_critic="no"))
    assert record.outcome == "unjudged"
    record, _, _ = asked("flat", always(reasoner=""))
    assert (record.outcome, record.answer) == ("gave_up", "")


def test_a_scope_is_kept_by_every_search():
    request = AgentRequest(QUESTION, scope=("soup",))
    service = service_of(Scripted(always()))
    record = service.answer_now(request)
    assert {name for step in record.steps for name in step.passage_ids} == {"soup"}
    nothing = service.answer_now(AgentRequest(QUESTION, scope=()))
    assert nothing.outcome == "accepted" and not any(step.passage_ids for step in nothing.steps)


def test_a_state_gives_each_retrieval_its_clue():
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**24, num_state_slots=1))
    history = History.of([{"role": "user", "content": "we took the heron"}])
    engine.add_state(Writer(engine.model, CONFIG).write("s", history, SessionTargets("heron boat")))
    running = AsyncEngine(engine)
    endpoint = Scripted(always())
    service = service_of(endpoint)
    service._clues = Clues(EngineEndpoint(running, "tiny"), 8)
    record = service.answer_now(as_arm(AgentRequest(QUESTION, session="s"), "coa-pss"))
    running.close()
    clue_calls = [call for call in record.usage.calls if call.state_bytes]
    assert [call.agent for call in clue_calls] == ["retriever"] * 2
    assert service.counters.num_clues == 2 and "retriever" not in endpoint.agents()
    assert engine.counters.num_state_tokens > 0 and record.outcome == "accepted"
    searches = [step.text for step in record.steps if step.agent == "retriever"]
    assert searches == [call.text.strip() for call in record.calls if call.agent == "retriever"]


def test_a_session_that_is_not_there_fails_and_is_never_searched_without_its_state():
    engine = AsyncEngine(Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**22)))
    service = service_of(Scripted(always()))
    with pytest.raises(RequestRejected, match="without clues"):
        service.answer_now(AgentRequest(QUESTION, session="ghost"))
    service._clues = Clues(EngineEndpoint(engine, "tiny"))
    record = service.answer_now(AgentRequest(QUESTION, session="ghost"))
    engine.close()
    assert (record.outcome, record.cause) == ("failed", "no_session")
    assert service.counters.num_evidence_searches == 0


def test_two_questions_at_once_keep_their_own_books():
    service = service_of(Scripted(lambda call, before: GOOD[call.agent]))

    async def both():
        return await asyncio.gather(service.answer(REQUEST), service.answer(AgentRequest("Who is Ada?")))

    first, second = asyncio.run(both())
    assert first.query != second.query and len(first.calls) == len(second.calls) == 9
    assert {call.query for call in first.usage.calls} == {first.query}
    assert [span.parent for span in second.spans].count(-1) == 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: AgentRequest(" "), "question is empty"),
        (lambda: AgentRequest("a", pipeline="best"), "choices: flat, rag, coa"),
        (lambda: AgentRequest("a", pipeline="rag", session="s"), "needs pipeline coa"),
        (lambda: as_arm(REQUEST, "best"), "choices: flat, rag, coa-nokv, coa-pkv, coa-pss"),
        (lambda: as_arm(REQUEST, "coa-pss"), "needs a session"),
        (lambda: Limits(threshold=1.5), r"threshold is 1\.5"),
        (lambda: Limits(max_loops=0), "max_loops is 0"),
        (lambda: Limits(max_tokens={"critic": 1}), "at least 1 token for each"),
        (lambda: render("huge", "critic", {}), "choices: small, large"),
    ],
)
def test_bad_requests_say_what_would_be_good(make, reason):
    with pytest.raises((RequestRejected, ConfigError), match=reason):
        make()


def test_arms_of_the_ablation_differ_in_the_switch_alone():
    assert {name for name in ARMS["coa-pkv"] if ARMS["coa-pkv"][name] != ARMS["coa-nokv"][name]} == {"kv_enabled"}


@pytest.mark.parametrize("prompts", SETS)
def test_both_sets_of_prompts_ask_for_the_same_with_the_same_parts(prompts):
    for name in NAMES:
        assert template(prompts, name).is_valid()
        assert set(template(prompts, name).get_identifiers()) == set(template("small", name).get_identifiers())


def test_spans_have_the_names_of_the_genai_conventions_and_reach_opentelemetry():
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed (see the dev extra)")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    record, _, _ = asked("coa-pkv")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    export(record.spans, provider.get_tracer("test"))
    found = exporter.get_finished_spans()
    assert [span.name for span in found] == [span.name for span in record.spans]
    chats = [span for span in found if span.name == "chat scripted"]
    assert len(chats) == 9
    assert chats[0].attributes["gen_ai.operation.name"] == "chat"
    assert chats[0].attributes["gen_ai.agent.name"] == "decomposer"
    assert chats[0].attributes["gen_ai.usage.input_tokens"] == record.usage.calls[0].prompt_tokens
    root = next(span for span in found if span.parent is None)
    assert root.name == "invoke_workflow coa"
    assert all(span.context.trace_id == root.context.trace_id for span in found)
    assert sum(span.parent is not None and span.parent.span_id == root.context.span_id for span in found) > 5
