"""The words around a clue: the instruction that a state is trained on always leads the online prompt."""

from __future__ import annotations

from pss_engine.models import Message

FIELD_INSTRUCTION = "Return only the {name} of the active session."
RECORD_QUESTIONS = (
    "What does the session record about {name}?",
    "Return the record named {name}.",
    "Recall {name}.",
    "Which entry of the session is {name}, and what does it say?",
)
"""Four templates of each record (PSS, V.3)."""


def readout_messages(instruction: str) -> list[Message]:
    """The training prompt: what the state answers to is its fixed readout."""
    return [{"role": "user", "content": instruction}]


def clue_messages(instruction: str, query: str) -> list[Message]:
    """The online prompt of a follow-up."""
    return [{"role": "user", "content": f"{instruction}\nRequest: {query}"}]


def field_messages(name: str) -> list[Message]:
    """The training prompt of one field of the session."""
    return [{"role": "user", "content": FIELD_INSTRUCTION.format(name=name)}]


def record_messages(name: str) -> list[list[Message]]:
    """The training prompts of a record."""
    return [[{"role": "user", "content": question.format(name=name)}] for question in RECORD_QUESTIONS]
