"""The answer prompt: the query and its evidence, nothing of the history."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from pss_engine.models import Message
from pss_engine.models.tokenizer import Tokenizer
from pss_engine.retrieval import Passage

NOTHING_FOUND = "(no passage was found)"
SEPARATOR = "\n\n"


def answer_messages(query: str, evidence: Sequence[Passage]) -> list[Message]:
    """What the base model reads after the state is off: the passages, best first, then the question."""
    passages = SEPARATOR.join(passage.rendered for passage in evidence) or NOTHING_FOUND
    return [{"role": "user", "content": f"{passages}{_question(query)}"}]


def _question(query: str) -> str:
    return f"{SEPARATOR}Question: {query}\nAnswer from the text above."


class AnswerPrompt:
    """``answer_messages`` in token ids, around passages that are token ids already.

    The text is the same; token ids may differ where a passage meets what stands before or after it, since neither
    side is tokenised again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._head, self._tail = tokenizer.frame()

    @property
    def before(self) -> Tensor:
        return torch.tensor(self._head, dtype=torch.int32)

    @cached_property
    def separator(self) -> Tensor:
        return torch.tensor(self._tokenizer.encode_after(SEPARATOR), dtype=torch.int32)

    def after(self, query: str, found: bool) -> Tensor:
        text = _question(query) if found else f"{NOTHING_FOUND}{_question(query)}"
        ids = self._tokenizer.encode_after(text) if found else self._tokenizer.encode(text)
        return torch.tensor([*ids, *self._tail], dtype=torch.int32)
