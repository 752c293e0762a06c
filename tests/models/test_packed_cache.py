"""A model from the cache is the model from its files, to the bit; whatever is damaged or has changed is not served."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pss_engine.models import LoadedModel, Tokenizer, load_model
from pss_engine.models.cache import CacheFolder, packed_cache, source_digest, tokenizers
from tests.models.test_loading import write_gguf
from tests.models.test_parity import logits
from tests.real import PACKAGE, real_model
from tests.tiny import CHATML, FAMILIES, save_tiny, tiny_model_folder, tiny_tokenizer

TOKENS = [[4, 5, 6, 7, 30]]
TEXT = "  Two spaces, ünïcode <|im_end|> 12345"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and files that count as settled at once."""
    monkeypatch.setenv("PSS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(source_digest, "SETTLED_NS", 0)
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folder("llama"), tmp_path / "model"))


def load(name: object, **options: object) -> LoadedModel:
    return load_model(str(name), num_session_layers=2, device="cpu", **options)


def entry(root: Path) -> Path:
    (found,) = CacheFolder(root).entries()
    return found.path


def same(one: LoadedModel, other: LoadedModel) -> bool:
    """Config, fingerprints, tokens and the bits of logits."""
    chat = [{"role": "user", "content": TEXT}]
    texts = [(m.tokenizer.encode(TEXT), m.tokenizer.prompt(TEXT), m.tokenizer.chat(chat)) for m in (one, other)]
    return (
        (one.config, one.fingerprint, one.tokenizer.fingerprint)
        == (other.config, other.fingerprint, other.tokenizer.fingerprint)
        and texts[0] == texts[1]
        and one.transformer.num_shared_layers == other.transformer.num_shared_layers
        and torch.equal(logits(one, TOKENS), logits(other, TOKENS))
    )


@pytest.mark.parametrize("weights", ["auto", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_second_load_is_the_first_to_the_bit(family: str, weights: str) -> None:
    first, second = (load(tiny_model_folder(family), weights=weights) for _ in range(2))
    assert (first.loaded_from, second.loaded_from) == ("files", "cache")
    assert same(first, second)


def test_a_model_that_ties_its_head_ties_it_again(tmp_path: Path) -> None:
    name = save_tiny(tmp_path / "tied", "llama", tie_word_embeddings=True)
    first, second = load(name), load(name)
    assert second.loaded_from == "cache"
    assert second.transformer.lm_head.weight is second.transformer.embedding
    assert same(first, second)


def test_a_scaled_rope_keeps_its_frequencies_and_factor(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 128}
    name = save_tiny(tmp_path / "yarn", "llama", rope_parameters=rope)
    first, second = load(name), load(name)
    assert first.transformer.rope.attention_factor != 1.0
    assert second.loaded_from == "cache"
    assert same(first, second)


def test_the_real_gguf_from_the_cache_is_the_real_gguf() -> None:
    real_model()
    first = load_model(PACKAGE, num_session_layers=2, device="cpu", cache=False)
    load_model(PACKAGE, device="cpu")
    second = load_model(PACKAGE, num_session_layers=2, device="cpu")
    assert (first.loaded_from, second.loaded_from) == ("files", "cache")
    assert same(first, second)


def test_the_cut_is_not_part_of_what_is_kept(folder: Path) -> None:
    load(folder)
    other = load_model(str(folder), num_session_layers=3, device="cpu")
    assert other.loaded_from == "cache"
    assert other.transformer.num_shared_layers == 1


def test_the_cache_can_be_turned_off(folder: Path, root: Path) -> None:
    assert load(folder, cache=False).loaded_from == "files"
    assert not root.exists()


def test_plain_weights_are_not_kept(folder: Path, root: Path) -> None:
    assert load(folder, dtype="bfloat16").loaded_from == "files"
    assert not root.exists()


def test_another_format_of_weights_is_another_entry(folder: Path, root: Path) -> None:
    load(folder)
    assert load(folder, weights="int8").loaded_from == "files"
    assert len(CacheFolder(root).entries()) == 2


def test_a_copy_elsewhere_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    load(folder)
    assert load(shutil.copytree(folder, tmp_path / "elsewhere")).loaded_from == "cache"


# What has changed is another model


def test_one_changed_weight_with_the_old_size_and_time_is_seen(folder: Path) -> None:
    before = load(folder)
    file = folder / "model.safetensors"
    times = file.stat()
    tensors = load_file(file)
    tensors["model.layers.3.mlp.down_proj.weight"][7, 9] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size
    after = load(folder)
    assert after.loaded_from == "files"
    assert not torch.equal(logits(after, TOKENS), logits(before, TOKENS))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"])
def test_every_file_that_a_load_reads_counts(folder: Path, name: str) -> None:
    load(folder)
    with (folder / name).open("a") as file:
        file.write("\n")
    assert load(folder).loaded_from == "files"


def test_a_template_that_appears_beside_a_gguf_file_counts(tmp_path: Path) -> None:
    digests = source_digest.SourceDigests(tmp_path / "notes")
    source = source_digest.ModelSource("m", "gguf", write_gguf(tmp_path / "m.gguf", "llama"))
    before = digests(source)
    (tmp_path / "unrelated.json").write_text("{}")
    assert digests(source) == before
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert digests(source) != before


def test_other_code_or_packages_are_another_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder)
    made_by = packed_cache._made_by()
    monkeypatch.setattr(packed_cache, "_made_by", lambda: (*made_by[:-1], "changed"))
    assert load(folder).loaded_from == "files"


def test_a_file_that_has_just_changed_is_not_remembered(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_digest, "SETTLED_NS", 10**18)
    load(folder)
    assert not list(root.glob("sources/*"))
    assert load(folder).loaded_from == "cache"


def test_a_known_file_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder)
    monkeypatch.setattr(source_digest, "_sha256", lambda path: pytest.fail(f"{path} is read again"))
    assert load(folder).loaded_from == "cache"


def test_files_that_change_during_the_load_are_not_kept(folder: Path, root: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == total:
            (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")

    load(folder, progress=change)
    assert CacheFolder(root).entries() == []


# What is damaged is not served


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


DAMAGE = {
    "a bit of the weights": lambda path: flip(path / "weights.safetensors", -100),
    "a bit of the header": lambda path: flip(path / "weights.safetensors", 40),
    "the length of the header": lambda path: flip(path / "weights.safetensors", 6),
    "a truncated body": lambda path: cut(path / "weights.safetensors", -4096),
    "a truncated header": lambda path: cut(path / "weights.safetensors", 20),
    "empty weights": lambda path: cut(path / "weights.safetensors", 0),
    "no weights": lambda path: (path / "weights.safetensors").unlink(),
    "a number of the config": lambda path: replace(path / "model.json", '"hidden_size": 48', '"hidden_size": 40'),
    "truncated facts": lambda path: cut(path / "model.json", 300),
    "facts of another kind": lambda path: (path / "model.json").write_text("[1]"),
    "no facts": lambda path: (path / "model.json").unlink(),
    "a bit of the tokenizer": lambda path: flip(path / "tokenizer" / "tokenizer.json", 200),
    "no tokenizer": lambda path: shutil.rmtree(path / "tokenizer"),
}


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_entry_is_discarded_with_one_line_and_made_again(
    folder: Path, root: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load(folder)
    DAMAGE[what](entry(root))
    with caplog.at_level(logging.WARNING, "pss_engine"):
        second = load(folder)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is damaged and removed" in line
    assert "\n" not in line
    assert second.loaded_from == "files"
    assert same(first, second)
    assert same(first, third := load(folder))
    assert third.loaded_from == "cache"


def test_a_damaged_note_of_a_source_is_read_as_none(folder: Path, root: Path) -> None:
    load(folder)
    for note in root.glob("sources/*"):
        note.write_text("{")
    assert load(folder).loaded_from == "cache"


def test_an_interrupted_write_leaves_no_entry(folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cache, "write_durably", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        load(folder)
    assert list((root / "models").iterdir()) == []


def test_a_cache_path_that_is_a_file_is_told_and_the_model_loads(
    folder: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root.write_text("not a folder")
    assert load(folder).loaded_from == "files"
    assert "is not kept" in caplog.text


def test_a_tokenizer_that_does_not_survive_is_not_kept(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = tiny_tokenizer()
    other.add_tokens(["extra"])
    monkeypatch.setattr(tokenizers, "READERS", {"another": lambda path: Tokenizer(other)})
    load(folder)
    assert "does not survive being saved" in caplog.text
    assert CacheFolder(root).entries() == []


# The file, the folder


@pytest.mark.parametrize(
    ("template", "reader"),
    [
        (CHATML, "tokenizers"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "transformers"),
    ],
)
def test_a_tokenizer_is_read_by_the_lightest_reader_that_reads_it_alike(
    folder: Path, root: Path, template: str, reader: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    first, second = load(folder), load(folder)
    assert json.loads((entry(root) / "model.json").read_text())["model"]["tokenizer_reader"] == reader
    assert second.loaded_from == "cache"
    assert same(first, second)


def test_a_start_from_the_cache_does_not_import_transformers(folder: Path, root: Path) -> None:
    load(folder)
    script = (
        "import sys; from pss_engine.models import load_model; "
        f"model = load_model({str(folder)!r}, num_session_layers=2, device='cpu'); "
        "model.tokenizer.chat([{'role': 'user', 'content': 'hi'}]); "
        "print(model.loaded_from, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cache", "False"]


def test_the_weights_are_a_safetensors_file_of_the_panels(folder: Path, root: Path) -> None:
    model = load(folder, weights="int8")
    kept = load_file(entry(root) / "weights.safetensors")
    (qkv,) = model.transformer.layers[2].qkv.weight
    assert torch.equal(kept["layers.2.qkv.0"], qkv.panels)
    assert torch.equal(kept["layers.2.input_norm"], model.transformer.layers[2].input_norm)


def test_two_writers_leave_one_whole_entry(folder: Path, root: Path) -> None:
    models: list[LoadedModel] = []
    threads = [threading.Thread(target=lambda: models.append(load(folder))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(models) == 3
    assert [path.name for path in (root / "models").iterdir()] == [entry(root).name]
    assert load(folder).loaded_from == "cache"


def test_what_was_used_longest_ago_goes_first(folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for at, weights in enumerate(("float32", "bfloat16")):
        load(folder, weights=weights)
        newest = CacheFolder(root).entries()[0]
        sizes.append(newest.num_bytes)
        os.utime(newest.path, (at + 1, at + 1))
    assert load(folder, weights="float32").loaded_from == "cache"  # used again: now the newest
    monkeypatch.setenv("PSS_CACHE_BYTES", str(sum(sizes)))
    load(folder, weights="float16")
    assert load(folder, weights="bfloat16").loaded_from == "files"
    assert CacheFolder(root).entries()[0].num_bytes == sizes[1]


def test_a_model_over_the_limit_is_told_and_not_kept(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PSS_CACHE_BYTES", "1000")
    assert load(folder).loaded_from == "files"
    assert "1000 bytes free" in caplog.text
    assert CacheFolder(root).entries() == []


def test_what_an_interrupted_writer_left_goes_after_an_hour(folder: Path, root: Path) -> None:
    for name, age in (("dead", 7200), ("busy", 0)):
        (root / "models" / f".tmp-{name}").mkdir(parents=True)
        os.utime(root / "models" / f".tmp-{name}", (time.time() - age,) * 2)
    load(folder)
    assert [path.name for path in root.glob("models/.tmp-*")] == [".tmp-busy"]


def test_clear_removes_everything(folder: Path, root: Path) -> None:
    load(folder)
    (root / "models" / ".tmp-dead").mkdir()
    num_bytes = CacheFolder(root).entries()[0].num_bytes
    assert CacheFolder(root).clear() == num_bytes
    assert list(root.iterdir()) == []


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pss_engine.models.cache import cache_folder

    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("PSS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pss_engine"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "pss_engine"


def test_facts_are_proved_by_their_digest(folder: Path, root: Path) -> None:
    load(folder)
    info = packed_cache.read_info(entry(root))
    assert info["source"]["path"] == str(folder)
    assert json.loads((entry(root) / "model.json").read_text())["model"] == info
