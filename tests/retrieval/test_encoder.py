from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.retrieval.encoder import PRESETS, Encoder, EncoderPreset
from tests.retrieval.encoders import real_encoder, save_encoder, tiny_encoder


def test_a_text_has_one_vector_whatever_stands_beside_it() -> None:
    encoder = tiny_encoder()
    texts = ["short", "a much longer text than the other one", ""]
    together = encoder.passages(texts)
    assert together.shape == (3, encoder.dim)
    for text, vector in zip(texts, together, strict=True):
        torch.testing.assert_close(encoder.passages([text])[0], vector, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_folder_says_how_tokens_are_pooled(tmp_path: Path, pooling: str) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "e", pooling=pooling, normalize=False)))
    assert encoder.preset == EncoderPreset(pooling, normalize=False, max_tokens=128)
    ids = encoder._tokenizer("red pump", return_tensors="pt")
    hidden = encoder._model(**ids).last_hidden_state[0]
    expected = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    torch.testing.assert_close(encoder.passages(["red pump", "a longer text"])[0], expected.detach(), rtol=0, atol=1e-5)


def test_prompts_of_the_folder_and_of_the_family(tmp_path: Path) -> None:
    prompts = {"query": "Q: ", "document": "D: "}
    encoder = Encoder(str(save_encoder(tmp_path / "own", prompts=prompts)))
    torch.testing.assert_close(encoder.queries(["x"]), encoder.passages(["x"]) * 0 + tiny(encoder, "Q: x"))
    torch.testing.assert_close(encoder.passages(["x"]), tiny(encoder, "D: x"))
    bge = Encoder(str(save_encoder(tmp_path / "bge-small-en", pooling="cls")))
    assert bge.preset.query_prompt == PRESETS["bge"].query_prompt and bge.preset.pooling == "cls"
    assert Encoder(str(tmp_path / "own"), preset="qwen3-embedding").preset.pooling == "last"


def tiny(encoder: Encoder, text: str) -> torch.Tensor:
    """The vector of exactly this text."""
    return encoder._encode([text])


def test_fingerprints_tell_weights_and_presets_apart(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "e")
    assert Encoder(str(folder)).fingerprint == Encoder(str(folder)).fingerprint
    assert Encoder(str(folder)).fingerprint != Encoder(str(folder), preset="contriever").fingerprint
    assert Encoder(str(folder)).fingerprint != tiny_encoder(8).fingerprint


def test_damaged_weights_are_told_when_they_give_nan(tmp_path: Path) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "e")))
    with torch.no_grad():
        encoder._model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(ConfigError, match="gives vectors with NaN or infinity"):
        encoder.passages(["text"])


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="preset 'e5' is unknown; choices: minilm"):
        Encoder(str(save_encoder(tmp_path / "e")), preset="e5")
    with pytest.raises(ConfigError, match="pooling 'max' is unknown"):
        EncoderPreset("max")
    with pytest.raises(ConfigError, match="neither a local path nor an installed package"):
        Encoder("no-such-encoder")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Encoder(str(tmp_path / "empty"))


def test_minilm_finds_a_paraphrase_without_a_common_word() -> None:
    encoder = real_encoder()
    passages = encoder.passages(["The physician examined her patient.", "Rainfall in the desert is rare."])
    assert (encoder.queries(["a doctor looks at a sick person"]) @ passages.T).argmax() == 0
    assert encoder.dim == 384 and encoder.preset.max_tokens == 256
    torch.testing.assert_close(passages.norm(dim=1), torch.ones(2))
