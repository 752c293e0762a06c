"""Communication Units: what one agent hands to the next. Typed, with a schema version, never raw context."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from pss_engine.errors import ConfigError

ROUTES = ("accept", "re-reason", "re-retrieve")


@dataclass(frozen=True)
class SubQuestions:
    """Of the Decomposer. ``#n`` in a question stands for the answer to the n-th, which comes before it."""

    KIND: ClassVar[str] = "sub_questions"
    VERSION: ClassVar[int] = 1
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """Of the Retriever: ids of passages, best first; the passages themselves stay in the vector tier."""

    KIND: ClassVar[str] = "evidence"
    VERSION: ClassVar[int] = 1
    search: str
    passage_ids: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Reasoning:
    """Of the Reasoner: what it concluded, from which passages and recalled traces, in which loop (from 1)."""

    KIND: ClassVar[str] = "reasoning"
    VERSION: ClassVar[int] = 1
    question: str
    loop: int
    text: str
    passage_ids: tuple[str, ...]
    trace_ids: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Of the Critic: a score, where to go, and why. The answer critic knows the routes accept and re-reason only."""

    KIND: ClassVar[str] = "verdict"
    VERSION: ClassVar[int] = 1
    score: float
    route: str
    critique: str

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            raise ConfigError(f"score is {self.score}; it must be 0 to 1")
        if self.route not in ROUTES:
            raise ConfigError(f"route {self.route!r} is unknown; choices: {', '.join(ROUTES)}")


@dataclass(frozen=True)
class Draft:
    """Of the Synthesiser: an answer, and which attempt it is (from 1)."""

    KIND: ClassVar[str] = "draft"
    VERSION: ClassVar[int] = 1
    answer: str
    attempt: int


Unit: TypeAlias = SubQuestions | Evidence | Reasoning | Verdict | Draft
KINDS: dict[str, type[Unit]] = {kind.KIND: kind for kind in (SubQuestions, Evidence, Reasoning, Verdict, Draft)}
U = TypeVar("U", bound=Unit)


def encode(unit: Unit) -> bytes:
    """JSON: ``{"kind", "version", "body"}``."""
    return json.dumps({"kind": unit.KIND, "version": unit.VERSION, "body": asdict(unit)}).encode()


def decode(data: bytes, kind: type[U]) -> U:
    """The unit that was encoded. Raises ConfigError for damage, another kind, another version or a wrong type."""
    try:
        document = json.loads(data)
    except ValueError as error:  # of UTF-8 too
        raise ConfigError(f"communication unit is no JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != {"kind", "version", "body"}:
        raise ConfigError("communication unit must have kind, version and body, and nothing else")
    if document["kind"] != kind.KIND:
        raise ConfigError(f"communication unit is {document['kind']!r}; expected {kind.KIND!r}")
    if document["version"] != kind.VERSION:
        raise ConfigError(f"{kind.KIND} has schema version {document['version']}; this build reads {kind.VERSION}")
    body = document["body"]
    types = get_type_hints(kind)
    names = [entry.name for entry in fields(kind)]
    if not isinstance(body, dict) or set(body) != set(names):
        raise ConfigError(f"{kind.KIND} must have the fields {', '.join(names)}, and nothing else")
    return kind(**{name: _read(f"{kind.KIND}.{name}", body[name], types[name]) for name in names})


def _read(where: str, value: Any, wanted: Any) -> Any:
    if get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {type(value).__name__}; expected a list")
        return tuple(_read(where, part, get_args(wanted)[0]) for part in value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(f"{where} is {type(value).__name__}; expected {wanted.__name__}")
    return value
