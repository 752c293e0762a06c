"""A saved tokenizer does what transformers' does with the same folder, without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from pss_engine.errors import ConfigError
from pss_engine.models import Tokenizer, load_tokenizer
from pss_engine.models.saved_tokenizer import SavedTokenizer
from pss_engine.retrieval.chunking import token_offsets
from pss_engine.retrieval.passage import Passage
from pss_engine.retrieval.tokens import fingerprint_of, token_ids
from tests.real import PACKAGE, real_model
from tests.tiny import CHATML, SPECIAL, tiny_tokenizer

TEMPLATES = {
    "ChatML": CHATML,
    "json": "{% for m in messages %}{{ m | tojson }}\n{{ m | tojson(indent=2) }}{% endfor %}",
    "a loop that ends early": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "what is not given": "{{ tools is none }} {{ documents is none }} {{ other is defined }}",
    "special tokens": "{{ eos_token }}{{ pad_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "lines": "{% for m in messages %}\n  {% if m.role == 'user' %}\n  {{ m.content }}\n  {% endif %}\n{% endfor %}\n",
}
CHATS = [
    [{"role": "user", "content": "hi <b>'you'</b>\n é"}],
    [{"role": "system", "content": "  be brief"}, {"role": "user", "content": "hi"}],
]


def both(folder: Path, template: str | None = CHATML) -> tuple[SavedTokenizer, PreTrainedTokenizerFast]:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return SavedTokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)


def real_pair(folder: Path) -> tuple[SavedTokenizer, PreTrainedTokenizerFast]:
    real_model()
    load_tokenizer(PACKAGE).hf.save_pretrained(folder)
    return SavedTokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("pair", [both, real_pair])
def test_texts_and_tokens_are_those_of_transformers(pair, tmp_path: Path) -> None:
    saved, theirs = pair(tmp_path)
    ours, expected = Tokenizer(saved), Tokenizer(theirs)
    assert ours.fingerprint == expected.fingerprint
    assert (ours.eos_token_id, ours.special_tokens) == (expected.eos_token_id, expected.special_tokens)

    @given(st.lists(st.one_of(st.sampled_from([*SPECIAL, "</s>", "\ue000"]), st.text(max_size=5)), max_size=6))
    @settings(deadline=None, max_examples=100)
    def agree(parts: list[str]) -> None:
        text = "".join(parts).encode("utf-8", "ignore").decode()
        ids = ours.encode(text)
        assert ids == expected.encode(text)
        assert ours.prompt(text) == expected.prompt(text)
        assert saved.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == expected.decode(ids)
        chat = [{"role": "user", "content": text}]
        assert ours.chat(chat) == expected.chat(chat)

    agree()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_transformers_renders_it(name: str, tmp_path: Path) -> None:
    saved, theirs = both(tmp_path, TEMPLATES[name])
    for chat in CHATS:
        for generate in (False, True):
            assert saved.apply_chat_template(chat, add_generation_prompt=generate) == theirs.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generate
            )


def test_what_a_template_refuses_is_refused(tmp_path: Path) -> None:
    saved, _ = both(tmp_path, "{{ raise_exception('users come first') }}")
    with pytest.raises(TemplateError, match="users come first"):
        saved.apply_chat_template(CHATS[0])
    with pytest.raises(ConfigError, match="the chat template refuses these messages: users come first"):
        Tokenizer(saved).chat(CHATS[0])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str, tmp_path: Path) -> None:
    saved, _ = both(tmp_path, source)
    with pytest.raises(TemplateError):
        saved.apply_chat_template(CHATS[0])


def test_a_tokenizer_without_a_template_says_so(tmp_path: Path) -> None:
    saved, _ = both(tmp_path, None)
    with pytest.raises(ConfigError, match="no chat template"):
        Tokenizer(saved).chat(CHATS[0])


def test_passages_are_cut_and_tokenised_alike(tmp_path: Path) -> None:
    saved, theirs = both(tmp_path)
    passages = [Passage("1", "One <|im_end|>", "a tïtle"), Passage("2", "zwei", "")]
    assert fingerprint_of(saved) == fingerprint_of(theirs)
    for ours, expected in zip(token_ids(passages, saved), token_ids(passages, theirs), strict=True):
        assert ours.tolist() == expected.tolist()
    assert token_offsets(passages[0].text, saved) == token_offsets(passages[0].text, theirs)
