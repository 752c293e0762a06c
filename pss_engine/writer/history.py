"""A session's history: chat turns from JSONL or plain text, in order, to tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pss_engine.errors import ConfigError
from pss_engine.models import Message, Tokenizer
from pss_engine.writer.targets import SessionTargets

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Record:
    """A named piece of a history that can be asked for (PSS, V.3)."""

    name: str
    text: str


@dataclass(frozen=True)
class History:
    """Ordered turns, and what their source declares of them.

    Attributes:
        targets: None where none are declared.
        records: for the objective ``records``.
        active: index of the turn that is marked as the active request; None where none is.
    """

    turns: tuple[Message, ...]
    targets: SessionTargets | None = None
    records: tuple[Record, ...] = ()
    active: int | None = None

    def chunks(self, tokenizer: Tokenizer, chunk_tokens: int) -> list[list[int]]:
        """The history as ``role: content`` lines, in chunks of ``chunk_tokens``; a last single token is dropped."""
        return cut(tokenizer.encode(as_lines(self.turns)), chunk_tokens)

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read plain text, or ``.jsonl`` with these lines:

        - first, if wanted, the targets: an object with ``clue`` and other fields of :class:`SessionTargets`;
        - turns: ``role``, ``content``, and ``"active": true`` in the one that is the active request;
        - records: ``record`` (its name) and ``text``.

        Raises:
            ConfigError: no such file, not UTF-8, a line that is none of these, or nothing in it.
        """
        path = Path(path)
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"history {str(path)!r} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"history {str(path)!r} is not UTF-8 (byte {error.start})") from error
        if path.suffix != ".jsonl":
            return cls.of([{"role": "user", "content": text.strip()}] if text.strip() else [])
        # line feeds alone end a line: str.splitlines would cut at U+2028 inside a JSON string
        rows = [_row(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        return cls.from_rows(rows, f"history {str(path)!r}")

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], where: str) -> History:
        """The objects of a ``.jsonl`` file, as :meth:`load` reads them; ``where`` begins every message."""
        rows, targets = list(rows), None
        if rows and "clue" in rows[0]:
            head = {name: value for name, value in rows.pop(0).items() if name != "session"}
            targets = SessionTargets.from_dict(head, where)
        turns: list[Message] = []
        records, active = [], None
        for number, row in enumerate(rows, 1):
            if "record" in row:
                records.append(_record(row, f"{where}, turn {number}"))
                continue
            role, content = row.get("role"), row.get("content")
            if not isinstance(role, str) or not isinstance(content, str):
                raise ConfigError(f"{where}, turn {number}: a turn needs the strings 'role' and 'content'")
            if role not in ROLES:
                raise ConfigError(f"{where}, turn {number}: role {role!r:.40} is unknown; choices: {', '.join(ROLES)}")
            if row.get("active") is True and content.strip():
                if active is not None:
                    raise ConfigError(f"{where}, turn {number}: a second active turn; one request at most is active")
                active = sum(bool(turn["content"].strip()) for turn in turns)
            turns.append({"role": role, "content": content})
        if records and not turns:
            turns = [{"role": "system", "content": f"{record.name}: {record.text}"} for record in records]
        return cls.of(turns, targets, tuple(records), active, where)

    @classmethod
    def of(
        cls,
        turns: Sequence[Message],
        targets: SessionTargets | None = None,
        records: tuple[Record, ...] = (),
        active: int | None = None,
        where: str = "history",
    ) -> History:
        """Turns of any speakers. Raises ConfigError where none has any content."""
        kept = tuple({"role": t["role"], "content": t["content"]} for t in turns if t["content"].strip())
        if not kept:
            raise ConfigError(f"{where} is empty; a state needs at least one turn with content")
        return cls(kept, targets, records, active)


def as_lines(turns: Sequence[Message]) -> str:
    """The turns as the writer reads them: a ``role: content`` line each."""
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def cut(ids: Sequence[int], chunk_tokens: int) -> list[list[int]]:
    """Tokens in chunks; a last single token, which nothing follows, is dropped."""
    chunks = [list(ids[at : at + chunk_tokens]) for at in range(0, len(ids), chunk_tokens)]
    return [chunk for chunk in chunks if len(chunk) > 1]


def _record(row: Mapping[str, Any], where: str) -> Record:
    name, text = row["record"], row.get("text")
    if not isinstance(name, str) or not isinstance(text, str) or not name.strip() or not text.strip():
        raise ConfigError(f"{where}: a record needs the strings 'record' (its name) and 'text', not empty")
    return Record(name, text)


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"history {str(path)!r}, line {number} is not JSON: {error.msg}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"history {str(path)!r}, line {number} is not a JSON object")
    return row
