"""What a state learns to say: the session's clue, and a conflicting one that it must not say.

The types carry a history and two search texts. Answers, evidence ids and labels have no way in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pss_engine.errors import ConfigError


@dataclass(frozen=True)
class SessionTargets:
    """What a session is about, in words of its history (PSS, section 2.3).

    Attributes:
        clue, negative_clue: z+ and z-: what is current, and an archived or conflicting one of the same kind.
        topic, entities, decision, query: the fields of the multi-field objectives; ``query`` is the active request.
        superseded, evidence: read by content deletions only, never learned.
    """

    clue: str
    negative_clue: str = ""
    topic: str = ""
    entities: tuple[str, ...] = ()
    decision: str = ""
    query: str = ""
    superseded: str = ""
    evidence: tuple[str, ...] = ()

    def named_fields(self) -> dict[str, str]:
        """The fields beside the query, by the name that their prompt uses."""
        return {"topic": self.topic, "entities": ", ".join(self.entities), "latest decision": self.decision}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> SessionTargets:
        """Read targets from JSON values; ConfigError for an unknown name or a value of the wrong kind."""
        known = {field.name: field.default for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{where}: {name!r} is no target; choices: {', '.join(known)}")
            many = isinstance(known[name], tuple)
            texts = value if many and isinstance(value, (list, tuple)) else [value]
            if isinstance(value, (list, tuple)) != many or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{where}: {name!r} must be {'a list of strings' if many else 'a string'}")
        taken: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**taken)

    def to_dict(self) -> dict[str, Any]:
        """The targets that are given, as JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items() if v}

    def __post_init__(self) -> None:
        if not self.clue.strip():
            raise ConfigError("clue is empty; a state needs a search text to learn")
        if self.clue.strip() == self.negative_clue.strip():
            raise ConfigError(
                "clue and negative_clue are the same text; the negative one must be an archived or conflicting clue"
            )
