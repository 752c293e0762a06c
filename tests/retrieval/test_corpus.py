from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pss_engine.errors import ConfigError
from pss_engine.retrieval import Corpus, Passage


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def write_jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def row(passage_id: str, text: str = "some text", title: str = "A title") -> dict[str, str]:
    return {"id": passage_id, "title": title, "text": text}


def test_jsonl_keeps_order_and_finds_passages_by_id(tmp_path: Path) -> None:
    corpus = Corpus.load(write_jsonl(tmp_path / "c.jsonl", row("b", "second"), "", row("a", "first", "")))
    assert len(corpus) == 2 and [p.id for p in corpus] == ["b", "a"]
    assert corpus[1] == corpus.by_id("a") == Passage("a", "", "first", doc_id="a")
    assert "b" in corpus and "c" not in corpus


def test_line_separators_inside_a_string_do_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(row("a", "one\u2028two"), ensure_ascii=False), encoding="utf-8")
    assert Corpus.load(path)[0].text == "one\u2028two"


def test_a_long_document_becomes_slices_with_provenance(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    text = "  one two  three\nfour five six seven "
    path = write_jsonl(tmp_path / "c.jsonl", row("long", text), row("short", "one two three"))
    corpus = Corpus.load(path, tokenizer, chunk_tokens=3, overlap_tokens=1)
    assert [p.id for p in corpus] == ["long#0", "long#1", "long#2", "short"]
    assert [p.doc_id for p in corpus] == ["long", "long", "long", "short"]
    assert [p.text for p in corpus] == [
        "  one two  three\n",
        "three\nfour five ",
        "five six seven ",
        "one two three",
    ]
    assert all(text[p.start : p.start + len(p.text)] == p.text for p in corpus if p.doc_id == "long")
    assert {p.title for p in corpus} == {"A title"}


def test_without_a_tokenizer_documents_stay_whole(tmp_path: Path) -> None:
    assert len(Corpus.load(write_jsonl(tmp_path / "c.jsonl", row("a", "word " * 500)))) == 1


def test_a_folder_is_read_in_order_of_its_paths(tmp_path: Path) -> None:
    for name, text in {
        "b.txt": "plain",
        "a/z.md": "intro\n# The heading\nbody",
        "a/nested/y.MD": "no heading",
        "a/empty.md": " \n",
        "a/code.py": "print()",
        ".hidden/x.md": "secret",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    corpus = Corpus.load(tmp_path)
    assert [(p.id, p.title) for p in corpus] == [("a/nested/y.MD", "y"), ("a/z.md", "The heading"), ("b.txt", "b")]
    assert corpus.by_id("a/z.md").text == "intro\n# The heading\nbody"


def test_the_digest_follows_the_content_not_the_place(tmp_path: Path) -> None:
    one = Corpus.load(write_jsonl(tmp_path / "one.jsonl", row("a"), row("b")))
    same = Corpus.load(write_jsonl(tmp_path / "two.jsonl", "", row("a"), row("b")))
    assert one.digest == same.digest and len(one.digest) == 64
    assert one.digest != Corpus.load(write_jsonl(tmp_path / "3.jsonl", row("b"), row("a"))).digest
    assert one.digest != Corpus.load(write_jsonl(tmp_path / "4.jsonl", row("a"), row("b", "other"))).digest


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"line 2: not JSON"),
        ("[1, 2]", r"line 2: expected an object with id, title, text, got list"),
        (json.dumps({"id": "x", "text": "t"}), r"line 2: field 'title' is missing"),
        (json.dumps({"id": 7, "title": "", "text": "t"}), r"line 2: field 'id' must be a string, got int"),
        (json.dumps({"id": "x", "title": "", "text": " "}), r"line 2: field 'text' is empty"),
        (json.dumps({"id": "x", "title": "", "text": "\ud800"}), r"line 2: field 'text' holds half a surrogate"),
        (json.dumps(row("a")), r"line 2: id 'a' is already used in line 1"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Corpus.load(write_jsonl(tmp_path / "c.jsonl", row("a"), line))
    assert "\n" not in str(caught.value)


def test_missing_empty_and_unreadable_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: no such file"):
        Corpus.load(tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match=r"empty\.jsonl is empty"):
        Corpus.load(write_jsonl(tmp_path / "empty.jsonl", ""))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder is empty: it needs at least a \.md or \.txt file"):
        Corpus.load(tmp_path / "folder")
    (tmp_path / "latin.jsonl").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"latin\.jsonl is not UTF-8 text: byte 3"):
        Corpus.load(tmp_path / "latin.jsonl")


def test_an_overlap_as_long_as_the_chunk_is_refused_even_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="overlap_tokens is 64"):
        Corpus.load(write_jsonl(tmp_path / "c.jsonl", row("a")), chunk_tokens=64, overlap_tokens=64)


def test_a_chunk_id_that_meets_a_document_id_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", row("a", "one two three four"), row("a#1"))
    with pytest.raises(ConfigError, match="'a#1' occurs more than once"):
        Corpus.load(path, tokenizer, chunk_tokens=3, overlap_tokens=0)


def test_a_corpus_of_nothing_and_an_unknown_passage_are_errors() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Corpus([])
    with pytest.raises(ConfigError, match="'b' is not among the 1 passages"):
        Corpus([Passage("a", "", "text")]).by_id("b")
