"""Evidence and traces over every vector store: the same answers, what outlives a process, a store that goes away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pss_engine.agents import AgentRequest, AgentService
from pss_engine.agents.memory import EvidencePool, MemoryKV, SqliteKV, TraceMemory
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval.stores import MemoryStore, VectorStore
from tests.agents.scripted import PASSAGES, Scripted, always, service_of
from tests.agents.test_pipeline import QUESTION
from tests.retrieval.encoders import tiny_encoder
from tests.retrieval.vector_stores import KINDS, PERSISTENT

ENCODER = tiny_encoder()
each_kind = pytest.mark.parametrize("kind", KINDS)
each_persistent_kind = pytest.mark.parametrize("kind", PERSISTENT)


def service_on(evidence: VectorStore, traces: VectorStore) -> AgentService:
    service = service_of(Scripted(always()))
    service.evidence = EvidencePool(evidence, ENCODER, PASSAGES, service.counters)
    service.traces = TraceMemory(traces, MemoryKV(), ENCODER, service.counters)
    return service


def open_two(kind: str, folder: Path) -> list[VectorStore]:
    return [KINDS[kind](folder / role, ENCODER.dim)() for role in ("evidence", "traces")]


def told(service: AgentService, query: str) -> list[tuple[object, ...]]:
    record = service.answer_now(AgentRequest(QUESTION, query), query)
    return [(step.agent, step.text, step.passage_ids, step.trace_ids) for step in record.steps]


@each_kind
def test_a_query_reads_and_recalls_the_same_whatever_the_store(kind: str, tmp_path: Path) -> None:
    stores = open_two(kind, tmp_path)
    expected = service_on(MemoryStore(ENCODER.dim), MemoryStore(ENCODER.dim))
    service = service_on(*stores)
    for query in ("q1", "q2"):
        assert told(service, query) == told(expected, query)
    assert service.counters.num_recalled == expected.counters.num_recalled > 0
    assert (service.counters.num_traces_written, service.counters.num_trace_faults) == (6, 0)
    assert service.traces.clear() == 6 and len(stores[1]) == 0 and len(stores[0]) == len(PASSAGES)
    for store in stores:
        store.close()


@each_kind
def test_another_text_under_the_same_id_is_not_taken_for_a_passage(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path, ENCODER.dim)()
    older = replace(PASSAGES[0], text="Something else entirely.")
    EvidencePool(store, ENCODER, [older], AgentCounters())
    evidence = EvidencePool(store, ENCODER, PASSAGES, AgentCounters())
    assert len(store) == len(PASSAGES) + 1
    assert {hit.passage_id for hit in evidence.search_reranked("Ada", 9)} == {"ada", "heron", "soup"}
    assert evidence["ada"].text == PASSAGES[0].text
    store.close()


@each_persistent_kind
def test_evidence_that_is_stored_is_not_encoded_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store = KINDS[kind](tmp_path, ENCODER.dim)
    store = open_store()
    before = EvidencePool(store, ENCODER, PASSAGES, AgentCounters()).search_reranked("Heron", 3)
    store.close()
    encoded: list[str] = []
    encode = type(ENCODER).passages
    monkeypatch.setattr(type(ENCODER), "passages", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    again = open_store()
    evidence = EvidencePool(again, ENCODER, PASSAGES, AgentCounters())
    assert encoded == [] and len(again) == len(PASSAGES)
    assert evidence.search_reranked("Heron", 3) == before
    again.close()


@each_persistent_kind
def test_traces_outlive_the_process(kind: str, tmp_path: Path) -> None:
    open_store = KINDS[kind](tmp_path, ENCODER.dim)
    for attempt in range(2):
        store = open_store()
        memory = TraceMemory(store, SqliteKV(tmp_path / "texts.db"), ENCODER, AgentCounters())
        if attempt == 0:
            memory.store_qkv("q1", "Where?", "final_answer", "Brest")
        else:
            assert [trace.value for trace in memory.search_outputs("Where?", 0.6, 5)] == ["Brest"]
        store.close()


@each_persistent_kind
def test_a_store_that_is_gone_costs_a_recall_but_fails_a_question_without_evidence(kind: str, tmp_path: Path) -> None:
    evidence, traces = open_two(kind, tmp_path)
    service = service_on(evidence, traces)
    traces.close()
    record = service.answer_now(AgentRequest(QUESTION, "q1"), "q1")
    assert record.outcome == "accepted" and service.counters.num_trace_faults > 0
    evidence.close()
    record = service.answer_now(AgentRequest(QUESTION, "q2"), "q2")
    assert (record.outcome, record.cause) == ("failed", "evidence_store")
