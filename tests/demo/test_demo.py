"""The demo shows what it claims to show: only a clue of the right session tells the three apart."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import groupby

import pytest

from pss_engine.demo import DemoSession, FollowUp, load_demo
from pss_engine.retrieval import BM25, Corpus
from pss_engine.retrieval.analyzer import analyze
from pss_engine.writer import History, SessionTargets

TOP_K = 4
DEMO = load_demo()
SESSIONS = {session.session_id: session for session in DEMO.sessions}
QUERIES = list(dict.fromkeys(followup.query for followup in DEMO.followups))
each_session = pytest.mark.parametrize("session", DEMO.sessions, ids=lambda session: session.session_id)
each_followup = pytest.mark.parametrize("followup", DEMO.followups, ids=lambda f: f"{f.session_id}-{f.id}")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.load(DEMO.corpus_path)


@pytest.fixture(scope="module")
def index(corpus: Corpus) -> BM25:
    return BM25(corpus)


def finds(index: BM25, search: str, followup: FollowUp) -> bool:
    return any(hit.passage_id in followup.gold for hit in index.search([search], TOP_K)[0])


def project(passage_id: str) -> str:
    return passage_id.split("/")[0]


def words_of(session: DemoSession) -> str:
    return " ".join(turn["content"] for turn in session.turns)


def identifiers(text: str) -> set[str]:
    """Configurations and checkpoints, such as ``heron-lidar-v3``."""
    return {term for term in analyze(text) if "-" in term}


@each_followup
def test_the_clue_finds_the_gold_passage_alone_and_behind_the_query(index: BM25, followup: FollowUp) -> None:
    clue = SESSIONS[followup.session_id].clue
    assert finds(index, clue, followup)
    assert finds(index, f"{followup.query} {clue}", followup)


@each_followup
def test_the_clue_may_lose_any_one_word(index: BM25, followup: FollowUp) -> None:
    words = SESSIONS[followup.session_id].clue.split()
    for i, word in enumerate(words):
        assert finds(index, " ".join(words[:i] + words[i + 1 :]), followup), f"without {word!r}"


def test_the_query_alone_finds_fewer_than_half(index: BM25) -> None:
    assert sum(finds(index, followup.query, followup) for followup in DEMO.followups) < len(DEMO.followups) / 2


@pytest.mark.parametrize("query", QUERIES)
def test_the_query_alone_finds_mostly_what_belongs_to_no_session(index: BM25, query: str) -> None:
    found = [project(hit.passage_id) for hit in index.search([query], TOP_K)[0]]
    assert sum(name not in SESSIONS for name in found) >= 3


@each_followup
def test_neither_another_session_nor_the_archived_alternative_finds_it(index: BM25, followup: FollowUp) -> None:
    own = SESSIONS[followup.session_id]
    for wrong in [own.negative_clue, *(other.clue for other in DEMO.sessions if other is not own)]:
        assert not finds(index, wrong, followup)
        assert not finds(index, f"{followup.query} {wrong}", followup)


@each_session
def test_the_archived_clue_finds_the_archived_passages(index: BM25, corpus: Corpus, session: DemoSession) -> None:
    for hit in index.search([session.negative_clue], TOP_K)[0]:
        assert project(hit.passage_id) == session.session_id
        assert "(archived)" in corpus.by_id(hit.passage_id).title


@each_session
def test_the_follow_ups_hold_nothing_that_belongs_to_one_session(session: DemoSession) -> None:
    others = {term for other in DEMO.sessions if other is not session for term in analyze(other.clue)}
    own = set(analyze(f"{session.clue} {session.negative_clue}")) - others
    assert session.session_id in own and identifiers(session.clue) <= own
    for query in QUERIES:
        assert not own & set(analyze(query))


@each_session
def test_a_session_is_a_long_alternating_chat(session: DemoSession) -> None:
    assert [turn["role"] for turn in session.turns] == ["user", "assistant"] * (len(session.turns) // 2)
    assert all(turn.keys() == {"role", "content"} and turn["content"].strip() for turn in session.turns)
    assert 25 <= len(session.turns) <= 45
    assert 1500 <= len(words_of(session).split()) <= 3000


@each_session
def test_the_clues_are_short_and_use_the_words_of_the_session(session: DemoSession) -> None:
    for clue in (session.clue, session.negative_clue):
        assert 6 <= len(clue.split()) <= 14
        assert set(analyze(clue)) <= set(analyze(words_of(session)))


@each_session
def test_the_last_turn_says_what_is_current_and_what_is_archived(session: DemoSession) -> None:
    current, archived = session.turns[-1]["content"].split("Archived are")
    assert len(identifiers(session.clue)) == len(identifiers(session.negative_clue)) == 2
    assert identifiers(session.clue) <= identifiers(current)
    assert identifiers(session.negative_clue) <= identifiers(archived)
    assert not identifiers(session.negative_clue) & identifiers(current)


@each_followup
def test_the_answer_is_in_the_gold_passage_and_not_in_the_history(corpus: Corpus, followup: FollowUp) -> None:
    evidence = " ".join(corpus.by_id(passage_id).text for passage_id in followup.gold).lower()
    history = words_of(SESSIONS[followup.session_id]).lower()
    assert followup.key_facts and followup.answer
    for fact in followup.key_facts:
        assert fact.lower() in evidence and fact.lower() not in history


def test_the_corpus_is_shared_and_its_passages_fit_a_window_of_192_tokens(corpus: Corpus) -> None:
    assert 72 <= len(corpus) <= 90
    # At up to 1.7 tokens a word, identifiers included, 110 words stay below the window.
    assert all(60 <= len(passage.text.split()) <= 110 for passage in corpus)
    passages = Counter(project(passage.id) for passage in corpus)
    assert set(SESSIONS) < set(passages)
    assert sum(passages[name] for name in set(passages) - set(SESSIONS)) >= len(corpus) / 4
    assert not any(session.clue in passage.text for session in DEMO.sessions for passage in corpus)


def test_every_question_is_asked_in_every_session() -> None:
    assert len(DEMO.followups) == 12
    for question, asked in groupby(DEMO.followups, key=lambda followup: followup.id):
        probes = list(asked)
        assert [probe.session_id for probe in probes] == list(SESSIONS), question
        assert len({probe.query for probe in probes}) == 1


@each_session
def test_the_history_and_its_file_are_what_the_writer_takes(session: DemoSession) -> None:
    history = History.load(DEMO.corpus_path.parent / "sessions" / f"{session.session_id}.jsonl")
    assert history == session.history
    assert history.targets == SessionTargets(session.clue, session.negative_clue)


def test_loading_the_demo_imports_no_torch() -> None:
    code = "import sys, pss_engine.demo as demo; demo.load_demo(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
