"""What the frozen base model names when it reads the end of a history: a vote in the choice of a clue's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.session.readout import ended
from pss_engine.writer import WriteJob, extract_targets, find_targets
from pss_engine.writer.extraction import SOURCES
from pss_engine.writer.history import as_lines

QUESTION = "Name what is current at the end of this session: project, configuration, component, checkpoint, route."
READ_TOKENS = 384
MAX_NAMED_TOKENS = 48
SOURCE = "base model and words of the history"


def with_proposals(engine: Engine, jobs: Sequence[WriteJob]) -> list[WriteJob]:
    """The jobs, those whose targets would come from the words of their history alone with better ones.

    The base model (greedy, no state) reads the last tokens and names what is current; a word that it names counts
    double among those of the history. It adds none: a word that the history does not have is not taken.
    """

    def count(text: str) -> int:
        return len(engine.model.tokenizer.encode(text))

    plain = [job for job in jobs if find_targets(job.history, job.targets, count)[1] == SOURCES[-1]]
    sampling = SamplingParams(max_new_tokens=MAX_NAMED_TOKENS)
    outputs = ended(engine.generate([Request(_messages(engine, job), sampling, agent="targets") for job in plain]))
    better = {
        job.session_id: replace(
            job, targets=extract_targets(job.history.turns, count, output.text), targets_from=SOURCE
        )
        for job, output in zip(plain, outputs, strict=True)
    }
    return [better.get(job.session_id, job) for job in jobs]


def _messages(engine: Engine, job: WriteJob) -> list[dict[str, str]]:
    tokenizer = engine.model.tokenizer
    end = tokenizer.decode(tokenizer.encode(as_lines(job.history.turns))[-READ_TOKENS:])
    return [{"role": "user", "content": f"{end}\n\n{QUESTION}"}]
