"""The dialogues of ``dialogue_memory.jsonl`` as histories, passages and probes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.suites import Skipped
from bench.suites.finding import Probe
from pss_engine.models import Tokenizer
from pss_engine.retrieval import Passage

FILE = "dialogue_memory.jsonl"
VAGUE_FOLLOW_UP = "What did we talk about most recently?"
CATEGORY = "single-hop"
SEED = 91
MAX_PASSAGE_TOKENS = 192
OVERLAP_TOKENS = 48


@dataclass(frozen=True)
class Turn:
    """What one person said in one sitting; a shared picture is there as its caption."""

    id: str
    sitting: int
    time: str
    speaker: str
    text: str


@dataclass(frozen=True)
class Dialogue:
    """Many sittings of two people. ``qa`` is for scoring only."""

    session: str
    speakers: str
    turns: tuple[Turn, ...]
    qa: tuple[dict[str, Any], ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The history as the writer gets it."""
        return [{"role": turn.speaker, "content": turn.text} for turn in self.turns]


@dataclass(frozen=True)
class Window:
    """A passage and the turns it covers; its ``doc_id`` is the dialogue."""

    passage: Passage
    sitting: int
    turn_ids: frozenset[str]


def load(folder: Path) -> list[Dialogue]:
    """Raises Skipped where the file is not there."""
    path = folder / FILE
    if not path.is_file():
        raise Skipped(f"no {FILE} in the data folder; name one with --data FOLDER or PSS_DATA")
    return [_dialogue(json.loads(line)) for line in path.read_text("utf-8").split("\n") if line.strip()]


def _dialogue(row: dict[str, Any]) -> Dialogue:
    session = row["dialogue_id"].rpartition("/")[2]
    turns = [Turn(turn["id"], turn["session"], turn["time"], turn["speaker"], _text(turn)) for turn in row["turns"]]
    return Dialogue(session, " and ".join(row["speakers"]), tuple(turns), tuple(row["qa"]))


def _text(turn: dict[str, Any]) -> str:
    caption = turn.get("image_caption")
    return f"{turn['text']} [picture: {caption}]" if caption else str(turn["text"])


def cover(dialogue: Dialogue, tokenizer: Tokenizer) -> Iterator[Window]:
    """Passages of consecutive turns of one sitting, 192 tokens with 48 overlap, cut between turns only."""
    for sitting, group in groupby(dialogue.turns, key=lambda turn: turn.sitting):
        turns = list(group)
        lens = [len(tokenizer.encode(f"{turn.speaker}: {turn.text}\n")) for turn in turns]
        for start, end in spans(lens, MAX_PASSAGE_TOKENS, OVERLAP_TOKENS):
            part = turns[start:end]
            passage = Passage(
                id=f"{dialogue.session}/{part[0].id}-{part[-1].id}",
                title=f"{dialogue.speakers}, {part[0].time}",
                text="\n".join(f"{turn.speaker}: {turn.text}" for turn in part),
                doc_id=dialogue.session,
            )
            yield Window(passage, sitting, frozenset(turn.id for turn in part))


def spans(lens: Sequence[int], max_tokens: int, overlap_tokens: int) -> list[tuple[int, int]]:
    """Runs [start, end) of whole turns of at most ``max_tokens``, or of one longer turn.

    Each run begins with as many of the last turns of the run before as fit in ``overlap_tokens``.
    """
    found, start = [], 0
    while True:
        end = start + 1
        while end < len(lens) and sum(lens[start : end + 1]) <= max_tokens:
            end += 1
        found.append((start, end))
        if end == len(lens):
            return found
        # One new turn must fit after the overlap, or the next run would bring nothing new.
        again = end
        while again - 1 > start and sum(lens[again - 1 : end]) <= overlap_tokens:
            if sum(lens[again - 1 : end + 1]) > max_tokens:
                break
            again -= 1
        start = again


def vague(dialogue: Dialogue, windows: Sequence[Window]) -> Probe:
    """The same words for every dialogue; gold is any passage of its last sitting."""
    last = dialogue.turns[-1].sitting
    gold = {w.passage.id for w in windows if w.passage.doc_id == dialogue.session and w.sitting == last}
    return Probe(dialogue.session, VAGUE_FOLLOW_UP, (frozenset(gold),))


def annotated(dialogue: Dialogue, windows: Sequence[Window], count: int) -> list[Probe]:
    """A fixed sample of the single-hop questions; each evidence turn is a group of the passages that cover it."""
    own = [window for window in windows if window.passage.doc_id == dialogue.session]
    known = {turn.id for turn in dialogue.turns}
    usable = [
        qa
        for qa in dialogue.qa
        if qa["category_name"] == CATEGORY and qa["evidence_ids"] and set(qa["evidence_ids"]) <= known
    ]
    chosen = random.Random(SEED).sample(usable, min(count, len(usable)))
    return [
        Probe(
            dialogue.session,
            qa["question"],
            tuple(frozenset(w.passage.id for w in own if turn in w.turn_ids) for turn in qa["evidence_ids"]),
        )
        for qa in chosen
    ]
