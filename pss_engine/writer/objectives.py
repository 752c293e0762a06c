"""From an objective to the phases of a session's learning (PSS, table 23 and V.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pss_engine.errors import ConfigError
from pss_engine.models import Tokenizer
from pss_engine.writer.config import WriterConfig
from pss_engine.writer.coverage import chunks
from pss_engine.writer.history import History
from pss_engine.writer.lessons import Lesson, Phase
from pss_engine.writer.prompts import field_messages, readout_messages, record_messages
from pss_engine.writer.targets import SessionTargets

WITHOUT_HISTORY = ("query_only", "records")
RECORD_VISITS = 4
"""Updates of each question-record pair."""


def phases(config: WriterConfig, tokenizer: Tokenizer, history: History, targets: SessionTargets) -> list[Phase]:
    """What is learned, in order: the history, then the readout.

    Raises:
        ConfigError: the objective needs a target that is not there.
    """
    found = []
    if config.objective not in WITHOUT_HISTORY:
        lessons = [Lesson.of_chunk(chunk) for chunk in chunks(config, tokenizer, history, targets)]
        if lessons:
            steps = max(config.min_lm_steps, len(lessons))
            found.append(Phase("history", config.lm_learning_rate, steps, tuple(lessons), _half(config, 0)))
    for readouts, steps in _readouts(config, tokenizer, history, targets):
        found.append(Phase("readout", config.readout_learning_rate, steps, tuple(readouts), _half(config, 1)))
    if not found:
        raise ConfigError(f"objective {config.objective}: nothing to learn from a history of less than two tokens")
    return found


def said(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """A target as the model would say it: its tokens, then the end of the turn; nothing for an empty text."""
    if not text.strip():
        return ()
    end = tokenizer.eos_token_id
    return (*tokenizer.encode(text.strip()), *(() if end is None else (end,)))


def _readouts(
    config: WriterConfig, tokenizer: Tokenizer, history: History, targets: SessionTargets
) -> Iterable[tuple[Sequence[Lesson], int]]:
    prompt = tuple(tokenizer.chat(readout_messages(config.instruction)))
    positive, negative = said(tokenizer, targets.clue), said(tokenizer, targets.negative_clue)
    aligned = Lesson(prompt, positive, negative)
    query = Lesson(prompt, said(tokenizer, targets.query or targets.clue))
    fields = [
        Lesson(tuple(tokenizer.chat(field_messages(name))), said(tokenizer, text))
        for name, text in targets.named_fields().items()
        if text
    ]
    steps = config.readout_steps
    if config.objective == "retrieval_aligned":
        return [([aligned], steps)]
    if config.objective in ("query_only", "lm_plus_query"):
        return [([query], steps)]
    if config.objective == "multi_field":
        return [([*fields, query], steps)]
    if config.objective == "multi_field_plus_retrieval":
        return [([*fields, query], steps - steps // 2), ([aligned], max(1, steps // 2))]
    if config.objective == "records":
        pairs = _records(tokenizer, history)
        return [(pairs, RECORD_VISITS * len(pairs))]
    return []


def _records(tokenizer: Tokenizer, history: History) -> list[Lesson]:
    """Four questions for each record; the next record is the one that must not be said."""
    records = history.records
    if not records:
        raise ConfigError("objective records: the history has no records; a record is a line {'record': name, 'text'}")
    lessons = []
    for at, record in enumerate(records):
        other = records[(at + 1) % len(records)].text if len(records) > 1 else ""
        for messages in record_messages(record.name):
            prompt = tuple(tokenizer.chat(messages))
            lessons.append(Lesson(prompt, said(tokenizer, record.text), said(tokenizer, other)))
    return lessons


def _half(config: WriterConfig, which: int) -> int | None:
    return which if config.topology == "dual" else None
