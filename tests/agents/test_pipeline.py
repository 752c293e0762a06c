"""The controller: the paper's sequence, its routes, and an end within its limits whatever the models say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.agents import AGENTS, OUTCOMES, AgentRequest, as_arm
from pss_engine.agents.memory import MemoryKV
from pss_engine.agents.messages import Draft, encode
from tests.agents.scripted import BYTES, GOOD, Scripted, always, fault, service_of

QUESTION = "Where is the boat that Ada built?"
REQUEST = AgentRequest(QUESTION, "q1")


def run(script, request=REQUEST, **limits):
    endpoint = Scripted(script)
    service = service_of(endpoint, **limits)
    return service.answer_now(request), endpoint, service


def test_the_sequence_of_a_query_that_all_accept():
    record, endpoint, service = run(always())
    part = ["retriever", "reasoner", "critic"]
    assert endpoint.agents() == ["decomposer", *part, *part, "synthesiser", "answer_critic"]
    assert (record.outcome, record.answer, record.cause) == ("accepted", "Brest", "")
    # search_reranked in the Retriever and the Reasoner of both parts, and in the Synthesiser
    assert service.counters.num_evidence_searches == 5
    assert service.counters.num_recall_searches == 2
    assert service.counters.num_traces_written == 3
    assert [step.agent for step in record.steps] == endpoint.agents()


def test_a_part_that_needs_another_gets_its_conclusion():
    _, endpoint, _ = run(always())
    asked = [call.messages[0]["content"] for call in endpoint.calls if call.agent == "reasoner"]
    assert "Question: Where does The Heron. lie?" in asked[1]


def test_independent_parts_run_at_once():
    order = []

    def script(call, before):
        order.append(call.agent)
        return {**GOOD, "decomposer": "Who is Ada?\nWhat is the Heron?"}[call.agent]

    run(script)
    assert order[1:7] == ["retriever"] * 2 + ["reasoner"] * 2 + ["critic"] * 2


def test_the_critic_routes_to_the_reasoner_and_back_to_the_retriever():
    script = always(decomposer="Who?", critic=["0.1 re-reason", "0.2 re-retrieve", "0.9 accept"])
    record, endpoint, service = run(script)
    loop = ["retriever", "reasoner", "critic"]
    assert endpoint.agents()[1:-2] == [*loop, *loop[1:], *loop]
    counters = service.counters
    assert (counters.num_loops, counters.num_rejections) == (3, 2)
    assert (counters.num_re_reasoned, counters.num_re_retrieved, counters.num_gave_up) == (1, 1, 0)
    keys = [span.name for span in record.spans if span.name.startswith("store_qkv")]
    assert keys == [*(f"store_qkv reasoning_loop_{n}" for n in (1, 2, 3)), "store_qkv final_answer"]


def test_a_part_that_is_never_accepted_goes_on_with_its_best_conclusion_and_is_counted():
    replies = {"reasoner": ["first", "second", "third"], "critic": ["0.1 re-reason", "0.5 re-reason", "0.3 re-reason"]}
    record, endpoint, service = run(always(decomposer="Who?", **replies))
    synthesis = next(call for call in endpoint.calls if call.agent == "synthesiser")
    assert "Who? second" in synthesis.messages[0]["content"]
    assert service.counters.num_gave_up == 1 and record.outcome == "accepted"


def test_an_answer_that_is_never_accepted_is_given_up_and_said_so():
    record, endpoint, service = run(always(answer_critic="0.1"))
    assert (record.outcome, record.cause, record.failed) == ("gave_up", "rejected", True)
    assert endpoint.agents().count("synthesiser") == endpoint.agents().count("answer_critic") == 3
    assert service.counters.num_gave_up == 1


def test_a_malformed_reply_is_asked_for_again_with_the_reason():
    record, endpoint, service = run(always(critic=["fine by me", "0.9 accept"], decomposer="Who?"))
    asked = [call for call in endpoint.calls if call.agent == "critic"]
    assert [message["role"] for message in asked[1].messages] == ["user", "assistant", "user"]
    assert asked[1].messages[1]["content"] == "fine by me"
    assert "cannot be read: it is not a score" in asked[1].messages[2]["content"]
    assert (service.counters.num_malformed, service.counters.num_repaired) == (1, 1)
    assert service.counters.num_unreadable == 0 and record.outcome == "accepted"


def test_a_verdict_that_cannot_be_read_is_neither_a_yes_nor_a_no():
    record, endpoint, service = run(always(critic="good", answer_critic="good", decomposer="Who?"))
    assert (record.outcome, record.answer) == ("unjudged", "Brest")
    assert endpoint.agents().count("reasoner") == 1
    assert (service.counters.num_malformed, service.counters.num_unreadable) == (4, 2)


def test_a_plan_that_cannot_be_read_leaves_the_question_whole():
    record, endpoint, _ = run(always(decomposer="I cannot do that."))
    assert record.outcome == "accepted"
    asked = next(call for call in endpoint.calls if call.agent == "reasoner")
    assert f"Question: {QUESTION}" in asked.messages[0]["content"]
    assert "stays whole" in record.steps[0].text


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("cause", ["timeout", "http_500"])
def test_a_call_without_an_answer_fails_its_question_with_the_cause(agent, cause):
    record, _, service = run(always(**{agent: fault(cause)}))
    assert (record.outcome, record.cause, record.answer) == ("failed", cause, "")
    assert service.counters.num_call_faults >= 1
    assert any(span.error == cause for span in record.spans)


def test_spent_calls_end_a_query():
    record, endpoint, _ = run(always(), max_calls=4)
    assert (record.outcome, record.cause) == ("gave_up", "max_calls")
    assert len(endpoint.calls) == 4 == len(record.usage.calls)


def test_replies_of_one_line_end_at_the_line():
    _, endpoint, _ = run(always())
    stops = {call.agent: call.stop for call in endpoint.calls}
    assert {agent for agent, stop in stops.items() if stop == ("\n",)} == {"retriever", "critic", "answer_critic"}


def test_the_peak_names_its_agent():
    record, endpoint, _ = run(always(reasoner="long " * 500))
    peak = record.usage.peak_call
    sizes = {call.agent: 0 for call in endpoint.calls}
    for call in record.usage.calls:
        sizes[call.agent] = max(sizes[call.agent], call.kv_peak_bytes)
    assert sizes[peak.agent] == max(sizes.values()) == record.usage.kv_peak_bytes
    assert record.usage.kv_cumulative_bytes == sum(call.kv_peak_tokens * BYTES for call in record.usage.calls)


def test_memory_is_one_field_of_the_request():
    on, off = (as_arm(REQUEST, arm).to_dict() for arm in ("coa-pkv", "coa-nokv"))
    assert {name for name in on if on[name] != off[name]} == {"kv_enabled"}
    record, _, service = run(always(), as_arm(REQUEST, "coa-nokv"))
    assert not record.recall_allowed
    assert service.counters.num_recall_searches == service.counters.num_traces_written == 0
    assert service.counters.num_evidence_searches == 5


def test_what_one_question_concluded_is_recalled_by_the_next():
    endpoint = Scripted(always(decomposer="Who?"))
    service = service_of(endpoint)
    first = service.answer_now(REQUEST)
    second = service.answer_now(REQUEST)
    assert first.recalled == () and len(second.recalled) == 2
    assert all(trace_id.startswith(f"traces/{first.query}/") for trace_id in second.recalled)
    asked = [call.messages[0]["content"] for call in endpoint.calls if call.agent == "reasoner"]
    assert "Conclusions on earlier questions" not in asked[0]
    assert f"- {QUESTION} " in asked[1]


def test_a_query_that_was_killed_goes_on_where_it_was():
    units, died = MemoryKV(), [True]

    def script(call, before):
        return fault("timeout") if call.agent == "synthesiser" and died[0] else GOOD[call.agent]

    endpoint = Scripted(script)
    first = service_of(endpoint, units).answer_now(REQUEST, "mine")
    assert first.outcome == "failed"
    died[0], already = False, len(endpoint.calls)
    service = service_of(endpoint, units)
    assert service.answer_now(REQUEST, "mine").outcome == "accepted"
    assert endpoint.agents()[already:] == ["synthesiser", "answer_critic"]
    assert service.counters.num_units_reused == 7


def test_lost_and_damaged_units_are_made_again():
    units = MemoryKV()
    service_of(Scripted(always()), units).answer_now(REQUEST, "mine")
    lost = MemoryKV()
    for step in ("plan", "evidence/0/1", "verdict/0/1", "draft/1"):
        lost.put_once("mine", step, units.get("mine", step))
    lost.put_once("mine", "reasoning/0/1", b"\xff\xfe")
    lost.put_once("mine", "answer_verdict/1", encode(Draft("no verdict", 1)))
    endpoint = Scripted(always())
    service = service_of(endpoint, lost)
    record = service.answer_now(REQUEST, "mine")
    assert (record.outcome, record.answer) == ("accepted", "Brest")
    assert endpoint.agents() == ["reasoner", "retriever", "reasoner", "critic", "answer_critic"]
    assert service.counters.num_unit_damaged == 2


JUNK = st.sampled_from(
    [
        "",
        "yes",
        "0.9 accept",
        "0.1 re-reason",
        "0.2 re-retrieve",
        "0.9",
        "0.1",
        "Who?",
        "Who?\nWhere is #1?",
        "a?\nb?\nc?",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(JUNK, st.sampled_from([*GOOD.values()]), st.just(fault("timeout"))), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 12),
    st.sampled_from(["flat", "rag", "coa-nokv", "coa-pkv"]),
)
def test_whatever_models_say_a_query_ends_within_its_limits(replies, max_loops, max_repairs, max_calls, arm):
    given_out = iter(range(10**9))
    endpoint = Scripted(lambda call, before: replies[next(given_out) % len(replies)])
    service = service_of(endpoint, max_loops=max_loops, max_repairs=max_repairs, max_calls=max_calls)
    record = service.answer_now(as_arm(REQUEST, arm))
    limits, counters = service.limits, service.counters
    assert record.outcome in OUTCOMES
    assert len(endpoint.calls) == counters.num_calls <= limits.most_calls
    assert len(record.usage.calls) == counters.num_calls - counters.num_call_faults == len(record.calls)
    assert counters.num_loops <= limits.max_questions * max_loops
    assert counters.num_malformed <= counters.num_calls
    assert counters.num_malformed >= counters.num_unreadable * (max_repairs + 1)
    assert all(call.max_new_tokens <= max(limits.max_tokens.values()) for call in endpoint.calls)
    assert record.failed == (record.outcome in ("gave_up", "failed")) == bool(record.cause)
    assert (record.outcome == "failed") <= (counters.num_call_faults > 0)
    assert all(span.end_ns >= span.start_ns > 0 and span.parent < at for at, span in enumerate(record.spans))
    if arm != "coa-pkv":
        assert counters.num_traces_written == counters.num_recall_searches == 0
