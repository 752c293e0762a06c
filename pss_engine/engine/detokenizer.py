"""Text of a sequence while it grows: whole characters only, and cut at stop strings."""

from __future__ import annotations

from pss_engine.models import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Incremental decoding: where text is wanted after each step it decodes a short tail, never the whole text. Without
    stop strings nothing is decoded before somebody asks for it."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._prefix = self._read = 0
        self.text = ""

    def push(self, token_id: int) -> bool:
        """Add one token; True where a stop string is complete (the text then ends before it)."""
        self._ids.append(token_id)
        return bool(self._stop) and self._read_on()

    @property
    def settled(self) -> str:
        """The text that no stop string can take back any more."""
        if not self._stop:
            self._read_on()
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

    def _read_on(self) -> bool:
        """Text of the new tokens, if it ends with a whole character; True where a stop string is complete."""
        tail = self._tail()
        if tail.endswith(REPLACEMENT):
            return False
        self._prefix, self._read = self._read, len(self._ids)
        return self._append(tail)

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
