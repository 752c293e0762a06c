"""Text of a sequence while it grows: whole characters only, and cut at stop strings."""

from __future__ import annotations

from pss_engine.models import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Incremental decoding: each step decodes a short tail, never the whole text."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._prefix = self._read = 0
        self.text = ""

    def push(self, token_id: int) -> bool:
        """Add one token; True where a stop string is complete (the text then ends before it)."""
        self._ids.append(token_id)
        tail = self._tail()
        if tail.endswith(REPLACEMENT):
            return False
        self._prefix, self._read = self._read, len(self._ids)
        return self._append(tail)

    @property
    def settled(self) -> str:
        """The text that no stop string can take back any more."""
        held = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self.text)), held, -1):
                if self.text.endswith(stop[:length]):
                    held = length
                    break
        return self.text[: len(self.text) - held]

    def finish(self) -> str:
        """The text, with whatever an unfinished character left."""
        self.text += self._tail()
        self._read = len(self._ids)
        return self.text

    def _tail(self) -> str:
        """Text of the tokens not read yet, decoded after those before them so that joins come out right."""
        known = self._tokenizer.decode(self._ids[self._prefix : self._read])
        return self._tokenizer.decode(self._ids[self._prefix :])[len(known) :]

    def _append(self, tail: str) -> bool:
        unseen = len(self.text)
        self.text += tail
        hits = [at for s in self._stop if (at := self.text.find(s, max(0, unseen - len(s) + 1))) >= 0]
        if hits:
            self.text = self.text[: min(hits)]
        return bool(hits)
