"""Documents from JSONL files and folders of text, one at a time, every fault named by its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pss_engine.errors import ConfigError
from pss_engine.retrieval.passage import Passage

TEXT_SUFFIXES = (".md", ".txt")
FIELDS = ("id", "title", "text")
_BOM = b"\xef\xbb\xbf"


def read_documents(path: Path) -> Iterator[tuple[Passage, int]]:
    """Every document of a JSONL file or folder, with the bytes of the source that are read by then.

    Raises:
        ConfigError: nothing there, nothing in it, a line that is not a passage, or an id that occurs twice.
    """
    if not path.exists():
        raise ConfigError(f"corpus {path}: no such file or folder")
    num_documents = 0
    for document in _read_folder(path) if path.is_dir() else _read_jsonl(path):
        num_documents += 1
        yield document
    if num_documents == 0:
        wanted = "a .md or .txt file with text" if path.is_dir() else "a line with id, title and text"
        raise ConfigError(f"corpus {path} is empty: it needs at least {wanted}")


def source_bytes(path: Path) -> int:
    """Size of what ``read_documents`` will read."""
    if path.is_dir():
        return sum(file.stat().st_size for file in _text_files(path).values())
    return path.stat().st_size if path.exists() else 0


def _read_jsonl(path: Path) -> Iterator[tuple[Passage, int]]:
    line_of: dict[str, int] = {}
    num_bytes = 0
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        # Lines end at line feeds only: str.splitlines would also cut at U+2028, which JSON allows inside a string.
        for number, raw in enumerate(file, start=1):
            line = _decode(raw.removeprefix(_BOM) if number == 1 else raw, path, num_bytes)
            num_bytes += len(raw)
            if not line.strip():
                continue
            passage = _parse_line(line, f"corpus {path}, line {number}")
            if passage.id in line_of:
                raise ConfigError(
                    f"corpus {path}, line {number}: id {passage.id!r} is already used in line {line_of[passage.id]}"
                )
            line_of[passage.id] = number
            yield passage, num_bytes


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


def _text_files(folder: Path) -> dict[str, Path]:
    files = {
        file.relative_to(folder).as_posix(): file
        for file in folder.rglob("*")
        if file.suffix.lower() in TEXT_SUFFIXES and file.is_file()
    }
    return {name: files[name] for name in sorted(files) if not any(part.startswith(".") for part in name.split("/"))}


def _read_folder(folder: Path) -> Iterator[tuple[Passage, int]]:
    num_bytes = 0
    for name, file in _text_files(folder).items():
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
        num_bytes += len(raw)
        text = _decode(raw.removeprefix(_BOM), file, 0).replace("\r\n", "\n").replace("\r", "\n")
        if text.strip():
            yield Passage(name, _title(file, text), text), num_bytes


def _title(file: Path, text: str) -> str:
    if file.suffix.lower() == ".md":
        for line in text.split("\n"):
            if line.startswith("# ") and line[2:].strip():
                return line[2:].strip()
    return file.stem


def _decode(raw: bytes, path: Path, before: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {before + error.start} cannot be read") from None


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
