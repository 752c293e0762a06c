"""The lifecycle on a tiny model: write, clue, retrieve, answer, with the state off where it must be off.

A random model learns its training prompt only, so what a state knows is asked for in mode ``readout`` here; that clues
answer to new queries is held by the demo's test on the real model.
"""

from __future__ import annotations

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.errors import ConfigError, RequestRejected, SessionNotFound
from pss_engine.retrieval import BM25, Corpus, Dense, Hybrid, Passage
from pss_engine.session import MODES, SessionRAG
from pss_engine.session.prompts import answer_messages
from pss_engine.state import StateStore
from pss_engine.writer import History, SessionTargets, Writer, WriterConfig
from tests.retrieval.encoders import tiny_encoder
from tests.tiny import tiny_model

CORPUS = Corpus(
    [
        Passage("red", "Red pump", "pump red alpha"),
        Passage("blue", "Blue pump", "pump blue beta"),
        Passage("green", "Green valve", "valve green gamma"),
    ]
)
CONFIG = WriterConfig(rank=8, alpha=64.0, min_lm_steps=1, readout_steps=150, readout_learning_rate=1e-2)


def rag_at(path, corpus=CORPUS, **kwargs):
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**23, num_state_slots=2))
    return SessionRAG(engine, corpus, StateStore(path), top_k=1, max_clue_tokens=16, max_answer_tokens=4, **kwargs)


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    rag = rag_at(path)
    for color in ("red", "blue"):
        history = History.of([{"role": "user", "content": f"we took the {color} pump"}])
        rag.write(
            color, history, SessionTargets(f"pump {color}", "valve green"), writer=Writer(rag.engine.model, CONFIG)
        )
    return path


@pytest.fixture
def rag(store_path):
    rag = rag_at(store_path)
    yield rag
    rag.engine.check()
    assert rag.engine.memory.bytes_in_use == 0


def test_the_same_words_find_each_sessions_own_passage(rag):
    answers = rag.ask_many([("red", "which one?"), ("blue", "which one?")], mode="readout")
    assert [a.clue.text for a in answers] == ["pump red", "pump blue"]
    assert [a.evidence.hits[0].passage_id for a in answers] == ["red", "blue"]


def test_clues_of_a_batch_are_those_of_each_session_alone(rag):
    together = rag.clues([("red", "which one?"), ("blue", "which one?")])
    alone = [rag.clues([(session, "which one?")])[0] for session in ("red", "blue")]
    assert [clue.text for clue in together] == [clue.text for clue in alone]
    assert together[0].text != together[1].text


def test_the_clue_runs_with_the_state_and_the_answer_without(rag):
    answer = rag.ask("red", "which one?")
    clue_call, answer_call = answer.usage.calls
    assert (clue_call.agent, answer_call.agent) == ("clue", "answer")
    assert clue_call.state_bytes > 0 == answer_call.state_bytes
    assert answer.clue.state_digest == rag.store.head("red")
    assert answer.usage.kv_peak_bytes == max(clue_call.kv_peak_bytes, answer_call.kv_peak_bytes)
    counters = rag.engine.counters
    rejected = counters.num_drafted_tokens - counters.num_accepted_tokens
    assert counters.num_state_tokens == clue_call.kv_peak_tokens + rejected


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_answers_and_says_what_it_searched_with(rag, mode):
    answer = rag.ask("red", "the valve", mode=mode)
    assert answer.mode == mode
    assert answer.to_dict()["usage"]["kv_peak_bytes"] > 0
    assert (answer.clue.text == "") == (mode == "raw")
    assert len(answer.usage.calls) == (1 if mode in ("raw", "readout") else 2)
    if mode == "raw":
        assert answer.evidence.hits[0].passage_id == "green"


def test_the_readout_is_recorded_when_the_state_is_written(rag):
    assert rag.store.get("red").meta.readout == "pump red"


def test_an_unknown_session_is_refused_in_every_mode(rag):
    for mode in MODES:
        with pytest.raises(SessionNotFound, match="ghost"):
            rag.ask("ghost", "which one?", mode=mode)


def test_an_unknown_mode_names_the_choices(rag):
    with pytest.raises(ConfigError, match="choices: clue, raw, rrf, readout"):
        rag.ask("red", "which one?", mode="best")


def test_a_query_longer_than_the_context_is_refused(rag):
    with pytest.raises(RequestRejected, match="the context holds 512"):
        rag.ask("red", "x" * 600)


def test_a_rewritten_session_is_served_in_its_new_version(rag, tmp_path):
    own = rag_at(tmp_path)
    for clue in ("pump red", "valve green"):
        history = History.of([{"role": "user", "content": "we changed our mind"}])
        own.write("s", history, SessionTargets(clue), writer=Writer(own.engine.model, CONFIG))
        assert own.ask("s", "which one?", mode="readout").clue.text == clue
    elsewhere = rag_at(tmp_path)
    assert elsewhere.ask("s", "which one?", mode="readout").clue.text == "valve green"


@pytest.mark.parametrize("mode", MODES)
def test_answer_prompts_hold_the_text_that_the_messages_say(rag, mode):
    prompts = []
    add = rag.engine.add

    def spy(request):
        if request.agent == "answer":
            prompts.append(request.prompt)
        return add(request)

    rag.engine.add = spy
    answer = rag.ask("red", "the valve", mode=mode)
    tokenizer = rag.engine.model.tokenizer
    messages = answer_messages("the valve", answer.evidence.passages)
    assert tokenizer.decode(prompts[0], skip_special_tokens=False) == tokenizer.decode(
        tokenizer.chat(messages), skip_special_tokens=False
    )
    stored = [CORPUS.token_ids(CORPUS.row_of(hit.passage_id)) for hit in answer.evidence.hits]
    assert rag.retrieval.num_evidence_tokens == sum(map(len, stored))
    assert stored or mode == "clue"
    assert rag.retrieval.num_searches == rag.retrieval.num_questions == 1


def test_a_query_of_unknown_words_is_answered_without_evidence_and_counted(rag):
    answer = rag.ask("red", "xyzzy", mode="raw")
    assert answer.evidence.hits == () and rag.retrieval.num_unknown_questions == 1


def test_a_batch_gives_each_the_answer_it_gets_alone(rag):
    asks = [("red", "which one?"), ("blue", "the valve"), ("red", "and the pump?")]
    together = rag.ask_many(asks)
    alone = [rag.ask(*ask) for ask in asks]
    assert [(a.clue.text, a.text, a.evidence.hits) for a in together] == [
        (a.clue.text, a.text, a.evidence.hits) for a in alone
    ]


def test_a_hybrid_retriever_serves_the_pipeline(store_path):
    corpus = Corpus(list(CORPUS))
    rag = rag_at(store_path, corpus=corpus, retriever=Hybrid(BM25(corpus), Dense(corpus, tiny_encoder())))
    answers = rag.ask_many([("red", "which one?"), ("blue", "which one?")], mode="readout")
    assert len(answers) == 2 and all(len(answer.evidence.hits) == 1 for answer in answers)
    with pytest.raises(ConfigError, match="another corpus"):
        rag_at(store_path, retriever=Hybrid(BM25(corpus)))
