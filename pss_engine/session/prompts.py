"""The answer prompt: the query and its evidence, nothing of the history."""

from __future__ import annotations

from collections.abc import Sequence

from pss_engine.models import Message
from pss_engine.retrieval import Passage


def answer_messages(query: str, evidence: Sequence[Passage]) -> list[Message]:
    """What the base model reads after the state is off."""
    if not evidence:
        return [
            {
                "role": "user",
                "content": f"No passage was found. Say so, and answer briefly if you can.\n\nQuestion: {query}",
            }
        ]
    passages = "\n\n".join(f"[{i}] {p.title}\n{p.text}" for i, p in enumerate(evidence, 1))
    return [
        {
            "role": "user",
            "content": f"{passages}\n\nAnswer in one or two sentences, from these passages only.\nQuestion: {query}",
        }
    ]
