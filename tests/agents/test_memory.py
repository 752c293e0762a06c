"""Tier 3: evidence is found and reranked without any memory; traces are recalled without touching evidence."""

from __future__ import annotations

import pytest
import torch

from pss_engine.agents import Fault
from pss_engine.agents.memory import EvidencePool, MemoryKV, SqliteKV, StoreDown, TraceMemory, cosines
from pss_engine.errors import ConfigError
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval import Passage
from pss_engine.retrieval.stores import MemoryStore
from tests.agents.scripted import PASSAGES, Scripted, always, service_of
from tests.agents.test_pipeline import REQUEST
from tests.retrieval.encoders import real_encoder, tiny_encoder

ENCODER = tiny_encoder()


class Down(MemoryStore):
    """A store whose server went away."""

    down = False

    def search(self, *args, **kwargs):
        if self.down:
            raise ConnectionError("no route to host")
        return super().search(*args, **kwargs)

    def remove(self, ids):
        if self.down:
            raise ConnectionError("no route to host")
        super().remove(ids)


def pool(store=None, reranker=None, counters=None, **kwargs):
    own = store if store is not None else MemoryStore(ENCODER.dim)
    return EvidencePool(own, ENCODER, PASSAGES, counters or AgentCounters(), reranker, **kwargs)


def traces(store=None, texts=None, counters=None):
    own = store if store is not None else MemoryStore(ENCODER.dim)
    return TraceMemory(own, texts or MemoryKV(), ENCODER, counters or AgentCounters())


def test_the_score_is_that_of_the_best_sentence():
    text = "It lies in Brest."
    hits = pool().search_reranked(text, 3)
    query = ENCODER.queries([text])[0]
    for hit in hits:
        passage = next(p for p in PASSAGES if p.id == hit.passage_id)
        sentences = [f"{passage.title}. {part}." for part in passage.text.removesuffix(".").split(". ")]
        assert hit.score == pytest.approx(float((ENCODER.passages(sentences) @ query).max()), abs=1e-4)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_only_the_scope_and_only_our_passages_are_found():
    store = MemoryStore(ENCODER.dim)
    store.add(["foreign"], ENCODER.passages(["Heron\nThe Heron is a boat."]))
    evidence = pool(store)
    assert {hit.passage_id for hit in evidence.search_reranked("Heron", 9)} == {"ada", "heron", "soup"}
    assert [hit.passage_id for hit in evidence.search_reranked("Heron", 9, {"soup", "foreign"})] == ["soup"]
    assert evidence.search_reranked("Heron", 9, {"foreign"}) == []


def test_a_reranker_that_fails_is_a_fault_not_the_order_before_it():
    class Gone:
        def scores(self, query, passages):
            raise RuntimeError("404")

    with pytest.raises(Fault, match="reranker failed: RuntimeError: 404") as caught:
        pool(reranker=Gone()).search_reranked("Heron", 2)
    assert caught.value.cause == "reranker"


def test_a_store_that_goes_down_fails_the_question_with_its_cause():
    service, store = service_of(Scripted(always())), Down(ENCODER.dim)
    service.evidence = pool(store, counters=service.counters)
    store.down = True
    record = service.answer_now(REQUEST)
    assert (record.outcome, record.cause) == ("failed", "evidence_store")
    store.down = False
    assert service.answer_now(REQUEST).outcome == "accepted"


def test_traces_are_found_from_the_threshold_on():
    memory = traces()
    memory.store_qkv("q1", "Where is the boat?", "final_answer", "Brest")
    vectors = cosines(ENCODER, ["Where is the boat?", "zzz 123 totally else"])
    cosine = float(vectors[0] @ vectors[1])
    for threshold, count in ((cosine - 1e-3, 1), (cosine + 1e-3, 0)):
        assert len(memory.search_outputs("zzz 123 totally else", threshold, 5)) == count
    (found,) = memory.search_outputs("Where is the boat?", 0.6, 5)
    assert (found.query, found.key, found.value, found.score) == (
        "q1",
        "final_answer",
        "Brest",
        pytest.approx(1.0, abs=1e-5),
    )


def test_a_query_does_not_recall_itself_and_writes_each_trace_once():
    counters = AgentCounters()
    memory = traces(counters=counters)
    assert memory.store_qkv("q1", "Where?", "reasoning_loop_1", "a")
    assert not memory.store_qkv("q1", "Where?", "reasoning_loop_1", "b")
    assert memory.store_qkv("q1", "Where?", "reasoning_loop_1", "c", part=1)
    assert memory.search_outputs("Where?", 0.6, 5, "q1") == []
    assert [trace.value for trace in memory.search_outputs("Where?", 0.6, 5, "q2")] == ["a", "c"]
    assert (counters.num_traces_written, counters.num_recalled) == (2, 2)


def test_clearing_takes_traces_and_leaves_evidence_and_what_others_have():
    store, texts, evidence = MemoryStore(ENCODER.dim), MemoryKV(), pool()
    memory = traces(store, texts)
    other = TraceMemory(store, texts, ENCODER, AgentCounters(), "another run")
    memory.store_qkv("q1", "Where?", "final_answer", "a")
    other.store_qkv("q2", "Where?", "final_answer", "b")
    assert memory.clear() == 1 and len(store) == 1
    assert memory.search_outputs("Where?", 0.0, 5) == []
    assert [trace.value for trace in other.search_outputs("Where?", 0.6, 5)] == ["b"]
    assert len(evidence.search_reranked("Heron", 9)) == 3
    assert memory.store_qkv("q1", "Where?", "final_answer", "again")


def test_texts_that_are_gone_are_counted_and_recalled_by_nobody():
    texts, counters = MemoryKV(), AgentCounters()
    memory = traces(texts=texts, counters=counters)
    memory.store_qkv("q1", "Where?", "final_answer", "a")
    texts.clear("traces")
    assert memory.search_outputs("Where?", 0.6, 5) == []
    assert (counters.num_traces_lost, counters.num_recalled) == (1, 0)


def test_a_vector_store_that_goes_down_costs_the_recall_and_a_reset_that_fails_is_said():
    store, counters = Down(ENCODER.dim), AgentCounters()
    memory = traces(store, counters=counters)
    memory.store_qkv("q1", "Where?", "final_answer", "a")
    store.down = True
    assert memory.search_outputs("Where?", 0.6, 5) == [] and counters.num_trace_faults == 1
    with pytest.raises(StoreDown, match="traces cannot be cleared: no route to host"):
        memory.clear()
    store.down = False
    assert memory.search_outputs("Where?", 0.6, 5)[0].value == "a"
    assert memory.clear() == 1


def test_traces_outlive_the_process_where_their_stores_do(tmp_path):
    store = MemoryStore(ENCODER.dim)
    traces(store, SqliteKV(tmp_path / "texts.db")).store_qkv("q1", "Where?", "final_answer", "Brest")
    later = traces(store, SqliteKV(tmp_path / "texts.db"))
    assert [trace.value for trace in later.search_outputs("Where?", 0.6, 5)] == ["Brest"]
    assert later.clear() == 1 and len(store) == 0


def test_stores_of_another_size_and_ids_twice_are_refused():
    with pytest.raises(ConfigError, match=f"7 features, the encoder gives {ENCODER.dim}"):
        pool(MemoryStore(7))
    with pytest.raises(ConfigError, match="7 features"):
        traces(MemoryStore(7))
    with pytest.raises(ConfigError, match="given twice"):
        EvidencePool(MemoryStore(ENCODER.dim), ENCODER, [PASSAGES[0], PASSAGES[0]], AgentCounters())


def test_the_papers_encoder_recalls_what_is_about_the_same_and_not_the_rest():
    encoder = real_encoder()
    memory = TraceMemory(MemoryStore(encoder.dim), MemoryKV(), encoder, AgentCounters())
    memory.store_qkv("q1", "In which year was Studio Ghibli founded?", "final_answer", "1985")
    assert memory.search_outputs("When was the film studio Ghibli founded?", 0.6, 3)[0].value == "1985"
    assert memory.search_outputs("Who shot down the helicopter?", 0.6, 3) == []
    evidence = EvidencePool(
        MemoryStore(encoder.dim),
        encoder,
        [*PASSAGES, Passage("long", "Brest", "Soup is eaten. Boats lie here. Ada built the boat Heron in 1985.")],
        AgentCounters(),
    )
    # one sentence says it, between others that do not
    assert evidence.search_reranked("Who built the boat Heron?", 1)[0].passage_id == "long"
    assert torch.isfinite(cosines(encoder, ["", "a"])).all()
