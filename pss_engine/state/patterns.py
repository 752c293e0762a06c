"""PEFT's name patterns (regular expressions out of a file), matched without backtracking.

PEFT feeds ``target_modules``, ``rank_pattern`` and ``alpha_pattern`` to ``re``. Those strings come from files, and a
hostile one can keep ``re`` busy for years. Here the usual subset is matched over sets of positions, in polynomial time:
literals, ``.``, classes, ``\\d \\w \\s``, ``\\b ^ $``, groups, alternation, and the quantifiers ``* + ? {m,n}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pss_engine.errors import StateFormatError

MAX_PATTERN_CHARS = 1024
MAX_REPEAT = 64
MAX_NESTING = 16

_TOKEN = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|\(\?:|[*+?]\??|\{\d*,?\d*\}\??|.", re.DOTALL)
_PLAIN = re.compile(r"\^?(?:[\w-]|\\?\.)*\$?")
_QUANTIFIER = re.compile(r"([*+?])\??|\{(\d*)(,?)(\d*)\}\??")


class _Run:
    """One text under one pattern: remembers where each node can end, by where it starts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._memo: dict[tuple[_Node, int], int] = {}

    def step(self, node: _Node, starts: int) -> int:
        """Bit set of the positions where ``node`` can end, started from any position of the bit set ``starts``."""
        ends, position = 0, 0
        while starts >> position:
            if starts >> position & 1:
                found = self._memo.get((node, position))
                if found is None:
                    found = self._memo[node, position] = node(self, position)
                ends |= found
            position += 1
        return ends


_Node = Callable[[_Run, int], int]


def _char(source: str) -> _Node:
    one = re.compile(source)
    return lambda run, at: 1 << (at + 1) if at < len(run.text) and one.match(run.text, at) else 0


def _edge(source: str) -> _Node:
    edge = re.compile(source)
    return lambda run, at: 1 << at if edge.match(run.text, at) else 0


def _sequence(parts: list[_Node]) -> _Node:
    def ends(run: _Run, at: int) -> int:
        found = 1 << at
        for part in parts:
            found = run.step(part, found)
        return found

    return ends


def _choice(options: list[_Node]) -> _Node:
    def ends(run: _Run, at: int) -> int:
        found = 0
        for option in options:
            found |= run.step(option, 1 << at)
        return found

    return ends


def _repeat(node: _Node, low: int, high: int | None) -> _Node:
    def ends(run: _Run, at: int) -> int:
        found = 1 << at
        for _ in range(low):
            found = run.step(node, found)
        new, count = found, low
        while new and (high is None or count < high):
            new = run.step(node, new) & ~found
            found |= new
            count += 1
        return found

    return ends


class _Parser:
    def __init__(self, source: str) -> None:
        self.tokens = _TOKEN.findall(source)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def alternation(self, depth: int) -> _Node:
        if depth > MAX_NESTING:
            raise ValueError(f"groups nest deeper than {MAX_NESTING}")
        options = [self.sequence(depth)]
        while self.peek() == "|":
            self.take()
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else _choice(options)

    def sequence(self, depth: int) -> _Node:
        parts = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.quantified(self.atom(depth)))
        return _sequence(parts)

    def atom(self, depth: int) -> _Node:
        token = self.take()
        if token in ("(", "(?:"):
            if self.peek().startswith("?"):
                raise ValueError("only plain and (?: groups are supported")
            inside = self.alternation(depth + 1)
            if self.take() != ")":
                raise ValueError("a group is not closed")
            return inside
        if token in ("^", "$", r"\b"):
            return _edge(token)
        if token[0] in "*+?{" or token in ("[", "\\"):
            raise ValueError(f"{token!r} is out of place")
        if token[0] == "\\" and token[1].isalnum() and token[1] not in "dDwWsS":
            raise ValueError(f"{token} is not supported")
        if len(token) == 1 and token != ".":
            token = re.escape(token)
        return _char(token)

    def quantified(self, node: _Node) -> _Node:
        match = _QUANTIFIER.fullmatch(self.peek())
        if not match:
            return node
        self.take()
        if _QUANTIFIER.fullmatch(self.peek()) or self.peek() == "+":
            raise ValueError("a quantifier follows a quantifier")
        sign, low, comma, high = match.groups()
        if sign:
            return _repeat(node, int(sign == "+"), 1 if sign == "?" else None)
        if not (low or comma) or max(int(low or 0), int(high or 0)) > MAX_REPEAT:
            raise ValueError(f"{match[0]}: a count must be in 0..{MAX_REPEAT}")
        return _repeat(node, int(low or 0), int(high) if high else None if comma else int(low))


class NamePattern:
    """A pattern over module names.

    Args:
        source: the pattern as PEFT would give it to ``re``.
        where: file and field, the start of an error message.

    Raises:
        StateFormatError: a pattern that is malformed, too long, or has back references, look-around or other rarities.
    """

    def __init__(self, source: str, where: str) -> None:
        self.source = source
        if len(source) > MAX_PATTERN_CHARS:
            raise StateFormatError(f"{where}: pattern of {len(source)} characters, at most {MAX_PATTERN_CHARS} allowed")
        # Plain names are by far the most common and have no quantifier, so that `re` itself is safe and fast for them.
        self._plain = re.compile(rf"(.*\.)?({source})") if _PLAIN.fullmatch(source) else None
        try:
            parser = _Parser(source)
            self._node = parser.alternation(0)
            if parser.peek():
                raise ValueError(f"{parser.peek()!r} is out of place")
        except (ValueError, re.error) as error:
            raise StateFormatError(f"{where}: pattern {source!r}: {error}") from None

    def matches(self, name: str) -> bool:
        """``re.fullmatch(source, name)``: PEFT's rule for a string ``target_modules``."""
        return self._ends_at_end(name, 1)

    def matches_suffix(self, name: str) -> bool:
        """``re.match(r"(.*\\.)?(source)$", name)``: PEFT's rule for ``rank_pattern`` and ``alpha_pattern``."""
        if self._plain is not None:
            return self._plain.fullmatch(name) is not None
        starts = 1
        for position, char in enumerate(name):
            if char == ".":
                starts |= 1 << (position + 1)
        return self._ends_at_end(name, starts)

    def _ends_at_end(self, name: str, starts: int) -> bool:
        run = _Run(name)
        return bool(run.step(self._node, starts) >> len(name) & 1)
