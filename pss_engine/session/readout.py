"""The fixed readout of a state, and whether it says what the state was to learn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pss_engine.engine import Engine, Request, RequestOutput, SamplingParams
from pss_engine.errors import ConfigError, PSSError
from pss_engine.state import SessionState, StateHandle
from pss_engine.writer import INSTRUCTION, readout_messages

_TERM = re.compile(r"[^\W_][\w.-]*\w|\d")
_FEWEST_LETTERS = 4


@dataclass(frozen=True)
class ReadoutGate:
    """When a write is flagged, and how much more is spent on it.

    Attributes:
        min_recall: share of the clue's key terms that the readout must have.
        max_retries: further rounds of readout updates for a state that misses; 0: it is flagged at once.
        retry_steps: updates of a round.
    """

    min_recall: float = 0.75
    max_retries: int = 1
    retry_steps: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.min_recall <= 1 or self.max_retries < 0 or self.retry_steps < 1:
            raise ConfigError(
                f"readout gate: min_recall {self.min_recall} must be 0 to 1, max_retries {self.max_retries} "
                f"at least 0, retry_steps {self.retry_steps} at least 1"
            )


@dataclass(frozen=True)
class ReadoutCheck:
    """What the gate found; ``attempts`` counts the rounds of readout updates."""

    recall: float
    missed: tuple[str, ...]
    passed: bool
    attempts: int

    @classmethod
    def of(cls, readout: str, clue: str, gate: ReadoutGate, attempts: int) -> ReadoutCheck:
        wanted, said = key_terms(clue), set(key_terms(readout))
        missed = tuple(term for term in wanted if term not in said)
        recall = 1.0 - len(missed) / len(wanted) if wanted else 1.0
        return cls(recall, missed, recall >= gate.min_recall, attempts)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": list(self.missed)}


def key_terms(text: str) -> list[str]:
    """The words a search would rest on: those with a digit or of at least four letters, lower case, each once."""
    words = [match.group().lower() for match in _TERM.finditer(text)]
    return list(dict.fromkeys(w for w in words if len(w) >= _FEWEST_LETTERS or any(c.isdigit() for c in w)))


def record_readout(engine: Engine, state: SessionState, sampling: SamplingParams) -> SessionState:
    """The state with its fixed readout: what it emits for the training instruction, before any query is known."""
    engine.add_state(state)
    messages = readout_messages(instruction_of(state))
    output = ended(engine.generate([Request(messages, sampling, session=state.session_id, agent="readout")]))[0]
    engine.remove_state(state.session_id)
    meta = replace(state.meta, readout=output.text.strip(), readout_token_ids=tuple(output.token_ids))
    return replace(state, meta=meta)


def checked(state: SessionState, gate: ReadoutGate, attempts: int) -> SessionState:
    """The state with the gate's verdict on its readout; unchanged where it was to learn no clue."""
    if not state.meta.clue or state.meta.writer.get("objective") in ("lm_only", "records"):
        return state
    verdict = ReadoutCheck.of(state.meta.readout, state.meta.clue, gate, attempts)
    return replace(state, meta=replace(state.meta, readout_check=verdict.to_dict()))


def instruction_of(state: SessionState | StateHandle) -> str:
    """The instruction that the state was trained on; an adapter that was not written here gets the default one."""
    return str(state.meta.writer.get("instruction", INSTRUCTION))


def ended(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    """The outputs; PSSError with the first one's reason if any failed."""
    for output in outputs:
        if output.finish_reason == "error":
            raise PSSError(f"request {output.request_id} failed: {output.error}")
    return list(outputs)
