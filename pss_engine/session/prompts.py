"""The answer prompt: the query and its evidence, nothing of the history."""

from __future__ import annotations

from collections.abc import Sequence

from pss_engine.models import Message
from pss_engine.retrieval import Passage


def answer_messages(query: str, evidence: Sequence[Passage]) -> list[Message]:
    """What the base model reads after the state is off: the passages, best first, then the question."""
    passages = "\n\n".join(f"{passage.title}\n{passage.text}" for passage in evidence) or "(no passage was found)"
    return [{"role": "user", "content": f"{passages}\n\nQuestion: {query}\nAnswer from the text above."}]
