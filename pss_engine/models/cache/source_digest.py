"""Which model a folder or a file holds: by the content of everything that a load reads, never by its name."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pss_engine.durable import write_atomically
from pss_engine.models.source import ModelSource

READ_BYTES = 1 << 20
SETTLED_NS = 2_000_000_000

_IN_FOLDER = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "additional_chat_templates/*.jinja")
# What transformers looks for beside a GGUF file; such a file often lies in a folder with others that are not its own.
_BESIDE_GGUF = (
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*.jinja",
)


class SourceDigests:
    """sha256 of models, remembered by what the file system says of their files.

    A file is read again when its device, inode, size, time of modification or time of change is another. The last one
    cannot be set by copying or unpacking tools. A file that changed within the last two seconds is not remembered: a
    second change within one tick of the clock would leave its times as they were.

    Args:
        folder: where what is known of each file is kept; damaged notes there are read as none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, source: ModelSource) -> str:
        """sha256 over the name and content of each file; a lone GGUF file's own name does not count."""
        files = dict(_files(source))
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            digests = pool.map(self._of_file, files.values())
            text = "".join(f"{name}\0{digest}\n" for name, digest in zip(files, digests, strict=True))
        return hashlib.sha256(f"{source.kind}\n{text}".encode()).hexdigest()

    def _of_file(self, path: Path) -> str:
        path = path.resolve()
        before = _identity(path)
        note = self._folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"
        try:
            known = json.loads(note.read_text("utf-8"))
            if known["identity"] == before and len(known["sha256"]) == 64:
                return str(known["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        digest = _sha256(path)
        changed = max(before[-2:])
        if _identity(path) == before and time.time_ns() - changed > SETTLED_NS:
            text = json.dumps({"path": str(path), "identity": before, "sha256": digest})
            with suppress(OSError):  # a read-only cache serves as well, with one more reading of the file
                write_atomically(note, text.encode())
        return digest


def _files(source: ModelSource) -> Iterator[tuple[str, Path]]:
    """(name, path) of every file that a load may read, in the order of the names."""
    is_gguf = source.kind == "gguf"
    if is_gguf:
        yield "", source.path
    folder, patterns = (source.path.parent, _BESIDE_GGUF) if is_gguf else (source.path, _IN_FOLDER)
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    yield from sorted((str(path.relative_to(folder)), path) for path in found if path.suffix != ".gguf")


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _sha256(path: Path) -> str:
    digest, buffer = hashlib.sha256(), bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()
