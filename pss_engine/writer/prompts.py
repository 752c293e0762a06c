"""The words around a clue: the instruction that a state is trained on always leads the online prompt."""

from __future__ import annotations

from pss_engine.models import Message


def readout_messages(instruction: str) -> list[Message]:
    """The training prompt: what the state answers to is its fixed readout."""
    return [{"role": "user", "content": instruction}]


def clue_messages(instruction: str, query: str) -> list[Message]:
    """The online prompt of a follow-up."""
    return [{"role": "user", "content": f"{instruction}\nRequest: {query}"}]
