"""A corpus on disk and in change: built in batches, mapped, added to, taken from."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.retrieval import Corpus, Passage
from pss_engine.retrieval.chunking import PRESETS
from pss_engine.retrieval.corpus import BATCH_PASSAGES
from tests.retrieval.test_corpus import row, write_jsonl
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def source(path: Path, count: int = 3) -> Path:
    return write_jsonl(path / "c.jsonl", *(row(f"d{i}", f"text {i} ä", f"title {i}") for i in range(count)))


def same(one: Corpus, other: Corpus) -> None:
    assert list(one) == list(other) and one.digest == other.digest and one.tokenizer == other.tokenizer
    for passage in one:
        mine, theirs = one.token_ids(one.row_of(passage.id)), other.token_ids(other.row_of(passage.id))
        assert mine.tolist() == theirs.tolist()


def test_built_opened_saved_and_loaded_are_the_same(tmp_path: Path) -> None:
    path = source(tmp_path)
    loaded = Corpus.load(path, TOKENIZER, *PRESETS["192/48"])
    built = Corpus.build(path, tmp_path / "built", TOKENIZER, *PRESETS["192/48"])
    loaded.save(tmp_path / "saved")
    for corpus in (built, Corpus.open(tmp_path / "built", TOKENIZER), Corpus.load(tmp_path / "saved", TOKENIZER)):
        same(corpus, loaded)
        corpus.verify()
    assert sorted(os.listdir(tmp_path)) == ["built", "c.jsonl", "saved"]
    assert sorted(os.listdir(tmp_path / "built")) == ["corpus.json", "passages.safetensors"]


def test_token_ids_are_those_of_title_and_text(tmp_path: Path) -> None:
    corpus = Corpus.build(source(tmp_path), tmp_path / "built", TOKENIZER)
    assert TOKENIZER.decode(corpus.token_ids(1).tolist()) == "title 1\ntext 1 ä"
    assert corpus.token_ids(0).dtype == np.int32


def test_text_that_looks_like_a_special_token_stays_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", row("a", "<|im_end|>"))
    corpus = Corpus.load(path, TOKENIZER)
    assert TOKENIZER.convert_tokens_to_ids("<|im_end|>") not in corpus.token_ids(0)


def test_the_preset_windows_cut_and_every_window_has_its_tokens(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", row("long", "x" * 1000, ""))
    for chunk, overlap in PRESETS.values():
        corpus = Corpus.build(path, tmp_path / f"{chunk}", TOKENIZER, chunk, overlap)
        assert corpus[1].start == chunk - overlap and len(corpus[0].text) == chunk
        assert len(corpus.token_ids(0)) == chunk + 1  # the line feed after the title


def test_progress_is_told_in_bytes_of_the_source(tmp_path: Path) -> None:
    path, told = source(tmp_path, 2 * BATCH_PASSAGES + 1), []
    Corpus.build(path, tmp_path / "built", progress=lambda done, total: told.append((done, total)))
    size = path.stat().st_size
    assert [total for _, total in told] == [size] * 3 and told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_build_holds_a_batch_in_memory_not_the_source(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with path.open("w") as file:
        for i in range(20_000):
            file.write(json.dumps(row(f"d{i}", f"{i} " * 200)) + "\n")
    tracemalloc.start()
    try:
        corpus = Corpus.build(path, tmp_path / "built")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(corpus) == 20_000
    assert peak < path.stat().st_size / 2  # ids and lengths of all passages, texts of one batch


@pytest.mark.parametrize(
    ("line", "message"),
    [("{broken", "line 702: not JSON"), (json.dumps(row("d5")), "line 702: id 'd5' is already used")],
)
def test_a_broken_line_leaves_nothing_half_built(tmp_path: Path, line: str, message: str) -> None:
    path = source(tmp_path, 701)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=message):
        Corpus.build(path, tmp_path / "built", TOKENIZER)
    assert os.listdir(tmp_path) == ["c.jsonl"]


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Corpus.build(source(tmp_path), tmp_path / "built", progress=interrupt)
    assert os.listdir(tmp_path) == ["c.jsonl"]


def test_wrong_folders_and_tokenizers_are_refused(tmp_path: Path) -> None:
    path = source(tmp_path)
    Corpus.build(path, tmp_path / "built", TOKENIZER)
    with pytest.raises(ConfigError, match="built exists; name a new folder"):
        Corpus.build(path, tmp_path / "built", TOKENIZER)
    with pytest.raises(ConfigError, match=r"there is no corpus.json"):
        Corpus.open(tmp_path)
    other = tiny_tokenizer()
    other.add_tokens(["extra"])
    with pytest.raises(ConfigError, match=r"token ids of tokenizer .* build it again with this model"):
        Corpus.open(tmp_path / "built", other)
    Corpus.build(path, tmp_path / "without")
    with pytest.raises(ConfigError, match="tokenizer none"):
        Corpus.open(tmp_path / "without", TOKENIZER)


def test_damaged_folders_are_told_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "built"
    Corpus.build(source(tmp_path), folder)
    whole = (folder / "passages.safetensors").read_bytes()
    (folder / "passages.safetensors").write_bytes(whole[:-5])
    with pytest.raises(ConfigError, match="index file"):
        Corpus.open(folder)
    (folder / "passages.safetensors").write_bytes(whole.replace(b"text 1", b"text 7"))
    with pytest.raises(ConfigError, match="the corpus is damaged"):
        Corpus.open(folder).verify()
    meta = json.loads((folder / "corpus.json").read_text())
    for change, message in (({"num_passages": 9}, "9 passages were written, 3"), ({"format": "x"}, "is of format 'x'")):
        (folder / "corpus.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ConfigError, match=message):
            Corpus.open(folder)


def test_an_empty_source_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", "")
    with pytest.raises(ConfigError, match="is empty"):
        Corpus.build(path, tmp_path / "built")
    assert os.listdir(tmp_path) == ["c.jsonl"]


@given(st.lists(st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3)), max_size=12))
def test_adding_and_removing_is_what_a_list_would_do(steps: list[Any]) -> None:
    corpus, kept = Corpus([Passage("first", "t", "text")]), [Passage("first", "t", "text")]
    for number, step in enumerate(steps):
        if isinstance(step, list):
            added = [Passage(f"{number}-{i}", "", f"text {value}") for i, value in enumerate(step)]
            corpus.add(added)
            kept += added
        elif len(kept) > 1:
            gone = kept.pop(step % len(kept))
            corpus.remove([gone.id])
            assert gone.id not in corpus
    assert list(corpus) == kept and len(corpus) == len(kept)
    assert corpus.digest == Corpus(kept).digest
    assert all(corpus[corpus.row_of(passage.id)] == passage for passage in kept)
    by_rank = sorted(corpus.rows, key=lambda row: corpus.ranks[row])
    assert corpus.ids(by_rank) == sorted(passage.id for passage in kept)


def test_added_passages_bring_their_tokens(tmp_path: Path) -> None:
    corpus = Corpus.build(source(tmp_path), tmp_path / "built", TOKENIZER)
    corpus.add([Passage("new", "New", "words")], TOKENIZER)
    corpus.remove(["d1"])
    assert TOKENIZER.decode(corpus.token_ids(corpus.row_of("new")).tolist()) == "New\nwords"
    corpus.save(tmp_path / "changed")
    same(Corpus.open(tmp_path / "changed", TOKENIZER), corpus)
    with pytest.raises(ConfigError, match="with the tokenizer of the corpus"):
        corpus.add([Passage("x", "", "y")])


def test_wrong_changes_change_nothing() -> None:
    corpus = Corpus([Passage("a", "", "one"), Passage("b", "", "two")])
    for change, message in (
        (lambda: corpus.add([Passage("c", "", "x"), Passage("a", "", "x")]), "'a' occurs more than once"),
        (lambda: corpus.add([Passage("c", "", "x"), Passage("c", "", "y")]), "'c' occurs more than once"),
        (lambda: corpus.remove(["a", "z"]), "'z' is not among the 2 passages"),
        (lambda: corpus.remove(["a", "b"]), "the corpus would be empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            change()
        assert [passage.id for passage in corpus] == ["a", "b"] and corpus.num_rows == 2


def test_a_corpus_in_memory_can_be_tokenised_later() -> None:
    corpus = Corpus([Passage("a", "T", "text")])
    assert len(corpus.token_ids(0)) == 0
    corpus.tokenize(TOKENIZER)
    assert TOKENIZER.decode(corpus.token_ids(0).tolist()) == "T\ntext"
