"""The external corpus: passages in a fixed order, found by index or by id."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pss_engine.errors import ConfigError
from pss_engine.retrieval.chunking import CHUNK_TOKENS, OVERLAP_TOKENS, check_window, token_offsets, token_windows

TEXT_SUFFIXES = (".md", ".txt")
FIELDS = ("id", "title", "text")


class Hit(NamedTuple):
    """A passage that a search found, and its score (higher is better; comparable within one search only)."""

    passage_id: str
    score: float


@dataclass(frozen=True)
class Passage:
    """A unit of evidence.

    Attributes:
        id: unique in its corpus; ``doc`` for a whole document, ``doc#0``, ``doc#1``, ... for its chunks.
        title: title of the document.
        text: the evidence, an exact slice of the document's text.
        doc_id: the document it comes from; the passage's own id where none is given.
        start: first character of the slice in the document's text.
    """

    id: str
    title: str
    text: str
    doc_id: str = ""
    start: int = 0

    def __post_init__(self) -> None:
        if not self.doc_id:
            object.__setattr__(self, "doc_id", self.id)


class Corpus:
    """Passages with unique ids, in the order given.

    Raises:
        ConfigError: no passages, or two with the same id.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = tuple(passages)
        if not self._passages:
            raise ConfigError("the corpus is empty: it needs at least one passage")
        self._index = {passage.id: i for i, passage in enumerate(self._passages)}
        if len(self._index) != len(self._passages):
            twice = next(p.id for i, p in enumerate(self._passages) if self._index[p.id] != i)
            raise ConfigError(f"passage id {twice!r} occurs more than once in the corpus; ids must be unique")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        tokenizer: Any | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        overlap_tokens: int = OVERLAP_TOKENS,
    ) -> Corpus:
        """Read a JSONL file (``id``, ``title``, ``text`` a line) or a folder of ``.md`` and ``.txt`` files.

        A folder is read recursively in the order of the relative paths, which are the ids; a document's title is its
        first ``# heading``, or the file's name. Hidden and blank files are left out. A document of more than
        ``chunk_tokens`` tokens is cut into windows of that many, ``overlap_tokens`` of them shared with the window
        before.

        Args:
            tokenizer: a fast Hugging Face tokenizer, of the model that will read the evidence; None leaves documents
                whole.

        Raises:
            ConfigError: no such file, nothing in it, a line that is not a passage (its number is named), an id that
                occurs twice, or ``overlap_tokens`` not below ``chunk_tokens``.
        """
        check_window(chunk_tokens, overlap_tokens)
        source = Path(path)
        if not source.exists():
            raise ConfigError(f"corpus {source}: no such file or folder")
        documents = list(_read_folder(source) if source.is_dir() else _read_jsonl(source))
        if not documents:
            wanted = "a .md or .txt file with text" if source.is_dir() else "a line with id, title and text"
            raise ConfigError(f"corpus {source} is empty: it needs at least {wanted}")
        passages: list[Passage] = []
        for document in documents:
            passages += [document] if tokenizer is None else _cut(document, tokenizer, chunk_tokens, overlap_tokens)
        return cls(passages)

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, index: int) -> Passage:
        return self._passages[index]

    def __iter__(self) -> Iterator[Passage]:
        return iter(self._passages)

    def __contains__(self, passage_id: object) -> bool:
        return passage_id in self._index

    def by_id(self, passage_id: str) -> Passage:
        """The passage of that id. Raises ConfigError if there is none."""
        if passage_id not in self._index:
            raise ConfigError(f"passage {passage_id!r} is not among the {len(self)} passages of the corpus")
        return self._passages[self._index[passage_id]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) over all passages in order; equal content gives an equal digest, wherever it lies."""
        sha = hashlib.sha256()
        for passage in self._passages:
            row = [passage.id, passage.title, passage.text, passage.doc_id, passage.start]
            sha.update(json.dumps(row, ensure_ascii=True).encode("ascii") + b"\n")
        return sha.hexdigest()


def _cut(document: Passage, tokenizer: Any, chunk_tokens: int, overlap_tokens: int) -> Iterator[Passage]:
    offsets = token_offsets(document.text, tokenizer)
    if len(offsets) <= chunk_tokens:
        yield document
        return
    windows = token_windows(offsets, len(document.text), chunk_tokens, overlap_tokens)
    for i, window in enumerate(windows):
        text = document.text[window.start : window.end]
        yield Passage(f"{document.id}#{i}", document.title, text, document.id, window.start)


def _read_jsonl(path: Path) -> Iterator[Passage]:
    line_of: dict[str, int] = {}
    # Split at line feeds only: str.splitlines would also cut at U+2028, which JSON allows inside a string.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        passage = _parse_line(line, f"corpus {path}, line {number}")
        if passage.id in line_of:
            raise ConfigError(
                f"corpus {path}, line {number}: id {passage.id!r} is already used in line {line_of[passage.id]}"
            )
        line_of[passage.id] = number
        yield passage


def _parse_line(line: str, where: str) -> Passage:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected an object with {', '.join(FIELDS)}, got {type(row).__name__}")
    for field in FIELDS:
        if field not in row:
            raise ConfigError(f"{where}: field {field!r} is missing; a passage has {', '.join(FIELDS)}")
        value = row[field]
        if not isinstance(value, str):
            raise ConfigError(f"{where}: field {field!r} must be a string, got {type(value).__name__}")
        if field != "title" and not value.strip():
            raise ConfigError(f"{where}: field {field!r} is empty")
        if not _is_encodable(value):
            raise ConfigError(f"{where}: field {field!r} holds half a surrogate pair, which is not a character")
    return Passage(row["id"], row["title"], row["text"])


def _read_folder(folder: Path) -> Iterator[Passage]:
    files = {
        file.relative_to(folder).as_posix(): file
        for file in folder.rglob("*")
        if file.suffix.lower() in TEXT_SUFFIXES and file.is_file()
    }
    for name in sorted(files):
        if any(part.startswith(".") for part in name.split("/")):
            continue
        text = _read_text(files[name])
        if text.strip():
            yield Passage(name, _title(files[name], text), text)


def _title(file: Path, text: str) -> str:
    if file.suffix.lower() == ".md":
        for line in text.split("\n"):
            if line.startswith("# ") and line[2:].strip():
                return line[2:].strip()
    return file.stem


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
