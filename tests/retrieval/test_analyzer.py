from __future__ import annotations

import pytest

from pss_engine.retrieval.analyzer import analyze


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Load kestrel-7b-04.", ["load", "kestrel-7b-04", "kestrel", "7b", "04"]),
        ("cfg/lidar_v3.yaml", ["cfg/lidar_v3.yaml", "cfg", "lidar", "v3", "yaml"]),
        ("What was the plan?", ["plan"]),
        ("route B (the on-call lane)", ["route", "b", "on-call", "call", "lane"]),
        ("Grüße aus KÖLN, cafe\u0301", ["grüße", "aus", "köln", "café"]),
        ("-- ___ !?", []),
    ],
)
def test_words_are_lowered_and_identifiers_give_themselves_and_their_parts(text: str, terms: list[str]) -> None:
    assert analyze(text) == terms


def test_stopwords_can_be_kept() -> None:
    assert analyze("What was the plan?", stopwords=()) == ["what", "was", "the", "plan"]
