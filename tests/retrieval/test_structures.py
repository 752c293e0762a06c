"""What the structured searches find that a flat one does not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.retrieval import BM25, Corpus, Hybrid, Passage, record_wise, rrf, select_records, weighted
from pss_engine.retrieval.graph import Graph, entities
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.summary_leaf import SummaryLeaf, lead
from pss_engine.retrieval.transforms import RQ, HyDE, Transformed
from pss_engine.retrieval.tree import Tree, clusters
from tests.retrieval.encoders import tiny_encoder


def test_summaries_choose_the_document_of_a_passage_that_does_not_name_it() -> None:
    corpus = Corpus(
        [
            Passage("guide#0", "Guide", "Heron pump manual", "guide"),
            Passage("guide#1", "Guide", "replace the seal every year", "guide"),
            Passage("other#0", "Other", "a seal is an animal, replace it never", "other"),
        ]
    )
    index = SummaryLeaf(Hybrid(BM25(corpus)), BM25, summarize=lambda texts: texts[0], num_documents=1)
    assert [hit.passage_id for hit in index.search(["Heron seal"], 3)[0]] == ["guide#0", "guide#1"]
    assert index.search(["unheard"], 3) == [[]]


def test_a_summary_without_a_model_is_the_beginning_of_each_text() -> None:
    assert lead(["one two three", "four five six"], max_words=4) == "one two four five"


def test_clusters_are_the_groups_that_vectors_form() -> None:
    centres = F.normalize(torch.eye(4)[:3] + 0.01, dim=1)
    vectors = F.normalize(
        centres.repeat(5, 1) + 0.02 * torch.randn(15, 4, generator=torch.Generator().manual_seed(1)), dim=1
    )
    assert sorted(clusters(vectors, 3)) == [list(range(start, 15, 3)) for start in range(3)]
    assert clusters(vectors[:1], 5) == [[0]]
    assert sorted(i for group in clusters(vectors[:1].repeat(6, 1), 3) for i in group) == list(range(6))


def test_a_tree_holds_every_passage_at_every_level() -> None:
    corpus = Corpus(Passage(f"p{i:02}", "t", f"text {i} of {i % 4}") for i in range(30))
    tree = Tree(corpus, tiny_encoder(), fanout=3)
    rows = [sorted(row for node in tree.nodes for row in node.rows)]
    assert rows[0] == sorted(list(range(30)) * (len(rows[0]) // 30)) and len(rows[0]) >= 60
    with pytest.raises(ConfigError, match="fanout is 1"):
        Tree(corpus, tiny_encoder(), fanout=1)


def test_a_tree_finds_passages_through_a_summary() -> None:
    corpus = Corpus(Passage(f"p{i}", "", f"{'alpha' if i < 4 else 'omega'} {i}") for i in range(8))
    names = {"alpha": "the first letter", "omega": "the last letter"}
    tree = Tree(corpus, tiny_encoder(), summarize=lambda texts: names[texts[0].split()[0]], fanout=4)
    if {node.text for node in tree.nodes} == set(names.values()) and all(len(n.rows) == 4 for n in tree.nodes):
        found = {hit.passage_id for hit in tree.search(["the last letter"], 4)[0]}
        assert found == {"p4", "p5", "p6", "p7"}
    else:
        assert all(node.rows for node in tree.nodes)


def test_a_graph_reaches_a_passage_that_shares_no_word_with_the_question() -> None:
    corpus = Corpus(
        [
            Passage("a", "", "Heron feeds Basalt"),
            Passage("b", "", "Basalt was built in Oslo"),
            Passage("c", "", "Flint stands alone"),
        ]
    )
    graph = Graph(corpus, BM25(corpus))
    assert [hit.passage_id for hit in graph.search(["Heron"], 3)[0]] == ["a", "b"]
    assert graph.related("Basalt", 2) == [("heron", 1.0), ("oslo", 1.0)]
    assert graph.related("Nobody", 2) == [] and graph.search(["nothing known"], 3) == [[]]
    with pytest.raises(ConfigError, match="damping is 1"):
        Graph(corpus, BM25(corpus), damping=1)


def test_entities_are_names_by_their_form() -> None:
    assert entities("The Bank of England lent kestrel-7b to NASA in 1999, it said.") == [
        "the bank of england",
        "kestrel-7b",
        "nasa",
        "1999",
    ]


def test_hyde_searches_with_passages_that_might_answer() -> None:
    corpus = Corpus([Passage("a", "", "bird with long legs"), Passage("b", "", "which animal")])
    prompts: list[str] = []

    def generate(conversations: object) -> list[str]:
        prompts.extend(c[-1]["content"] for c in conversations)  # type: ignore[attr-defined]
        return [" long legs bird \n"] * len(prompts)

    assert HyDE(generate)(["animal?"]) == [["animal?", "long legs bird"]]
    assert "Question: animal?" in prompts[0]
    prompts.clear()
    hits = Transformed(BM25(corpus), HyDE(generate)).search(["heron"], 2)[0]
    assert [hit.passage_id for hit in hits] == ["a"]


@pytest.mark.parametrize(
    ("operation", "answer", "texts"),
    [
        ("decompose", "1. who?\n- where?\n\n* when?", ["who?", "where?", "when?"]),
        ("decompose", "\n".join("abcdef"), ["a", "b", "c", "d"]),
        ("rewrite", "better question\nsecond line", ["better question"]),
        ("disambiguate", "  \n", ["query"]),
    ],
)
def test_refined_questions_are_the_lines_of_the_answer(operation: str, answer: str, texts: list[str]) -> None:
    assert RQ(lambda prompts: [answer] * len(prompts), operation)(["query"]) == [texts]


def test_a_generator_that_loses_answers_and_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="gave 0 answers to 1 prompts"):
        RQ(lambda prompts: [])(["query"])
    with pytest.raises(ConfigError, match="operation 'guess' is unknown; choices: rewrite, decompose, disambiguate"):
        RQ(lambda prompts: [], "guess")


def test_records_are_selected_by_words_or_by_meaning() -> None:
    records = ["the pump is red", "the valve is blue", "the pump is old"]
    assert select_records("valve", records) == [1]
    assert select_records("pump", records, 2) == [0, 2]
    assert select_records("unheard", records) == []
    assert select_records("\nthe valve is blue", records, 1, "dense", tiny_encoder()) == [1]
    for arguments, message in (
        (("q", []), "no records"),
        (("q", records, 1, "random"), "selector 'random' is unknown; choices: bm25, dense"),
        (("q", records, 1, "dense"), "needs an encoder"),
        (("q", records, 0), "k is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            select_records(*arguments)  # type: ignore[arg-type]


def test_record_wise_fusion_searches_with_each_record() -> None:
    index = BM25(["red pump", "blue valve", "green route"])
    found = record_wise(index, "which", ["pump", "valve"], 3)
    assert found == rrf(index.search(["which pump", "which valve"], 50), k=3)
    assert record_wise(index, "route", [], 3) == index.search(["route"], 3)[0]


def test_weighted_fusion_stretches_scores() -> None:
    one, other = [Hit("a", 10.0), Hit("b", 5.0), Hit("c", 0.0)], [Hit("b", 0.2)]
    assert weighted([one, other], [0.5, 0.5]) == [Hit("b", 0.75), Hit("a", 0.5), Hit("c", 0.0)]
    for weights, message in (([1.0], "1 weights for 2 rankings"), ([1.0, -1.0], "weight -1.0 is not")):
        with pytest.raises(ConfigError, match=message):
            weighted([one, other], weights)
