"""A session's history: chat turns from JSONL or plain text, in order, to tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pss_engine.errors import ConfigError
from pss_engine.models import Message, Tokenizer
from pss_engine.writer.targets import SessionTargets


@dataclass(frozen=True)
class Record:
    """A named piece of a history that can be asked for (PSS, V.3)."""

    name: str
    text: str


@dataclass(frozen=True)
class History:
    """Ordered turns, and the targets that the file itself declares (None where it declares none)."""

    turns: tuple[Message, ...]
    targets: SessionTargets | None = None
    records: tuple[Record, ...] = ()

    def chunks(self, tokenizer: Tokenizer, chunk_tokens: int) -> list[list[int]]:
        """The history as ``role: content`` lines, in chunks of ``chunk_tokens``; a last single token is dropped."""
        return cut(tokenizer.encode(as_lines(self.turns)), chunk_tokens)

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read ``.jsonl`` turns (``role``, ``content``; first line ``{"clue", "negative_clue"}`` if wanted) or text.

        Raises:
            ConfigError: no such file, not UTF-8, a line that is no turn, or nothing in it.
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
        targets = None
        if rows and "clue" in rows[0]:
            targets = _targets(path, rows.pop(0))
        for number, row in enumerate(rows, 1):
            if not isinstance(row.get("role"), str) or not isinstance(row.get("content"), str):
                raise ConfigError(
                    f"history {str(path)!r}, turn {number}: a turn needs the strings 'role' and 'content'"
                )
        return cls.of(rows, targets)

    @classmethod
    def of(cls, turns: Sequence[Message], targets: SessionTargets | None = None) -> History:
        """Raises ConfigError where no turn has any content."""
        kept = tuple({"role": t["role"], "content": t["content"]} for t in turns if t["content"].strip())
        if not kept:
            raise ConfigError("history is empty; a state needs at least one turn with content")
        return cls(kept, targets)


def as_lines(turns: Sequence[Message]) -> str:
    """The turns as the writer reads them: a ``role: content`` line each."""
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def cut(ids: Sequence[int], chunk_tokens: int) -> list[list[int]]:
    """Tokens in chunks; a last single token, which nothing follows, is dropped."""
    chunks = [list(ids[at : at + chunk_tokens]) for at in range(0, len(ids), chunk_tokens)]
    return [chunk for chunk in chunks if len(chunk) > 1]


def _targets(path: Path, head: dict[str, str]) -> SessionTargets:
    clue, negative = head["clue"], head.get("negative_clue", "")
    if not isinstance(clue, str) or not isinstance(negative, str):
        raise ConfigError(f"history {str(path)!r}: 'clue' and 'negative_clue' must be strings")
    return SessionTargets(clue, negative)


def _row(path: Path, number: int, line: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"history {str(path)!r}, line {number} is not JSON: {error.msg}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"history {str(path)!r}, line {number} is not a JSON object")
    return row
