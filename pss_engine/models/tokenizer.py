"""Text to tokens and back. Text of a user never becomes a special token."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pss_engine.models.saved_tokenizer import SavedTokenizer

Message = Mapping[str, str]


class Tokenizer:
    """A transformers tokenizer with the two guarantees that the engine gives.

    ``encode`` never emits a special token. ``chat`` renders the model's own template; special tokens come from the
    template alone, whatever the messages contain.
    """

    def __init__(self, hf: PreTrainedTokenizerBase | SavedTokenizer) -> None:
        self.hf = hf

    @property
    def eos_token_id(self) -> int | None:
        value: int | None = self.hf.eos_token_id
        return value

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the vocabulary (token, id) in id order."""
        digest = hashlib.sha256()
        for token, index in sorted(self.hf.get_vocab().items(), key=lambda item: item[1]):
            digest.update(f"{index}\0{token}\0".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @cached_property
    def special_tokens(self) -> frozenset[str]:
        """Text of the tokens that only a template, or the tokenizer itself, writes."""
        added = [t.content for t in getattr(self.hf, "added_tokens_decoder", {}).values() if t.special]
        return frozenset({*added, *self.hf.all_special_tokens} - {""})

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without any special token."""
        ids: list[int] = self.hf.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def encode_after(self, text: str) -> list[int]:
        """Tokens of plain text that goes on behind a word: what :meth:`encode` gives there, where that can be told."""
        mark = self.encode("x")
        ids = self.encode(f"x{text}")
        return ids[len(mark) :] if ids[: len(mark)] == mark else self.encode(text)

    def prompt(self, text: str) -> list[int]:
        """Tokens of a plain prompt: as :meth:`encode`, after what the tokenizer itself puts first (a BOS, often)."""
        ids: list[int] = self.hf.encode(text, add_special_tokens=True, split_special_tokens=True)
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text = self.hf.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Tokens of a conversation in the model's template.

        Raises:
            ConfigError: the tokenizer has no chat template, or the template refuses the roles.
        """
        if not self._quotes_special_tokens(messages):
            return self._encode_template(self._render(messages, add_generation_prompt))
        # Contents are swapped for marks, the template is rendered, then each content is tokenised as plain text.
        marks = [f"\ue000{index}\ue001" for index in range(len(messages))]
        marked = [{**m, "content": mark} for m, mark in zip(messages, marks, strict=True)]
        rest, ids = self._render(marked, add_generation_prompt), []
        for mark, message in zip(marks, messages, strict=True):
            before, found, rest = rest.partition(mark)
            if not found:
                raise ConfigError("the chat template drops a message that quotes a special token; send it without")
            ids += [*self._encode_template(before), *self.encode(message["content"])]
        return ids + self._encode_template(rest)

    def frame(self) -> tuple[list[int], list[int]]:
        """What the template puts before and after the content of a single user message, to be answered.

        Raises:
            ConfigError: as :meth:`chat`; or the template changes or drops the content.
        """
        mark = "\ue000"
        before, found, after = self._render([{"role": "user", "content": mark}], True).partition(mark)
        if not found or mark in after:
            raise ConfigError("the chat template does not hold the content of a message as it is, once")
        return self._encode_template(before), self._encode_template(after)

    def _quotes_special_tokens(self, messages: Sequence[Message]) -> bool:
        return any(token in message["content"] for message in messages for token in self.special_tokens)

    def _encode_template(self, text: str) -> list[int]:
        ids: list[int] = self.hf.encode(text, add_special_tokens=False)
        return ids

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        if not self.hf.chat_template:
            raise ConfigError(f"tokenizer {self.hf.name_or_path!r} has no chat template; send a plain prompt instead")
        try:
            text = self.hf.apply_chat_template(
                [dict(m) for m in messages], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # jinja raises TemplateError, templates raise what they like
            raise ConfigError(f"the chat template refuses these messages: {error}") from error
        assert isinstance(text, str)
        return text
