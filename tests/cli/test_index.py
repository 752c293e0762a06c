"""A corpus through the command line: made once, asked from its folder."""

from __future__ import annotations

from pathlib import Path

from pss_engine.retrieval import Corpus
from tests.cli.conftest import Pss
from tests.retrieval.encoders import save_encoder


def test_index_makes_a_folder_that_ask_opens(pss: Pss, files: Path, model: str, tmp_path: Path) -> None:
    encoder = str(save_encoder(tmp_path / "encoder"))
    options = ["--search", "hybrid", "--encoder", encoder, "--model", model]
    made = pss("index", files / "corpus.jsonl", tmp_path / "index", *options, "--json").json
    assert made["num_passages"] == 2 and made["num_tokens"] > 0
    assert made["digest"] == Corpus.open(tmp_path / "index").digest
    names = {file.name for file in (tmp_path / "index").iterdir()}
    assert names == {
        *("bm25.json", "bm25.safetensors", "corpus.json"),
        *("dense.json", "dense.safetensors", "passages.safetensors"),
    }
    ask = ["ask", "heron", "Rerun heron-lidar-v3", "--mode", "raw", "--top-k", 1, "--max-answer-tokens", 4]
    ask += ["--store", files / "store", "--num-session-layers", 2, "--corpus", tmp_path / "index", "--json"]
    assert pss(*ask, *options).json["passages"][0]["id"] == "sheet"
    assert pss(*ask, "--model", model).json["passages"][0]["id"] == "sheet"


def test_an_index_shows_what_was_made_and_refuses_an_old_folder(
    pss: Pss, files: Path, model: str, tmp_path: Path
) -> None:
    command = ["index", files / "corpus.jsonl", tmp_path / "index", "--model", model]
    ran = pss(*command)
    assert ran.code == 0 and "2 of" in ran.out
    again = pss(*command)
    assert again.code != 0 and "exists; name a new folder" in again.err
    broken = tmp_path / "broken.jsonl"
    broken.write_text((files / "corpus.jsonl").read_text() + "{")
    ran = pss("index", broken, tmp_path / "other", "--model", model)
    assert ran.code != 0 and "line 3: not JSON" in ran.err and not (tmp_path / "other").exists()


def test_a_search_that_finds_nothing_says_so(pss: Pss, files: Path, model: str) -> None:
    options = ["--store", files / "store", "--model", model, "--num-session-layers", 2, "--max-answer-tokens", 4]
    ran = pss("ask", "heron", "xyzzy", "--mode", "raw", "--corpus", files / "corpus.jsonl", *options)
    assert ran.code == 0 and "no passage: the corpus holds no word" in " ".join(ran.out.split())
