"""Asking all questions of a plan, into a folder that a killed run goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pss_engine.agents import AgentRequest, AgentService, QueryRecord, as_arm
from pss_engine.errors import ConfigError
from pss_engine.evaluation.plan import RunPlan, Turn, turns
from pss_engine.evaluation.questions import Question
from pss_engine.evaluation.scores import exact_match, token_f1

Progress = Callable[[int, int], None]
CONFIG, RECORDS, CHECKS = "config.json", "records.jsonl", "checks.jsonl"


class RunFolder:
    """``config.json`` (the plan), ``records.jsonl`` (a line a question), ``checks.jsonl`` (a line a replicate).

    Raises:
        ConfigError: the folder holds a run of another plan, or damaged lines before the last.
    """

    def __init__(self, path: Path, plan: RunPlan | None = None) -> None:
        self.path = path
        if plan is None:
            self.config = self._config()
        else:
            path.mkdir(parents=True, exist_ok=True)
            if (path / CONFIG).exists():
                self.config = self._config()
                if self.config["digest"] != plan.digest:
                    raise ConfigError(f"run {str(path)!r} is of another plan; name another folder, or the same options")
            else:
                self.config = {"digest": plan.digest, **plan.to_dict()}
                temporary = path / f".{CONFIG}"
                temporary.write_text(json.dumps(self.config, indent=2, ensure_ascii=False) + "\n", "utf-8")
                temporary.replace(path / CONFIG)
        self.records = self._lines(RECORDS)
        self.checks = self._lines(CHECKS)

    def add_record(self, row: dict[str, Any]) -> None:
        self.records.append(self._append(RECORDS, row))

    def add_check(self, row: dict[str, Any]) -> None:
        self.checks.append(self._append(CHECKS, row))

    def _append(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        """Write a line; returns what reading it gives."""
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        found: dict[str, Any] = json.loads(text)
        return found

    def _config(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.path / CONFIG).read_text("utf-8"))
            return found
        except OSError as error:
            raise ConfigError(f"{str(self.path)!r} is no run: {CONFIG}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{str(self.path)!r}: {CONFIG} is damaged: {error}") from None

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """All lines; a last one that a kill cut off is taken away, and its question is asked again."""
        file = self.path / name
        if not file.exists():
            return []
        data, rows, good = file.read_bytes(), list[dict[str, Any]](), 0
        for line in data.split(b"\n")[:-1]:
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise ConfigError(f"run {str(self.path)!r}: {name}, line {len(rows) + 1} is damaged") from None
            good += len(line) + 1
        if good < len(data):
            with file.open("r+b") as opened:
                opened.truncate(good)
        return rows


def run(
    service: AgentService,
    plan: RunPlan,
    questions: Sequence[Question],
    folder: RunFolder,
    progress: Progress | None = None,
) -> None:
    """Ask what is not asked yet.

    Before each replicate traces are cleared, contamination is looked for, and the switch is probed live both ways.

    Raises:
        StoreDown: traces cannot be cleared, so that the replicate would not be independent.
    """
    done = {(row["replicate"], row["arm"], row["question_id"]) for row in folder.records}
    checked = {row["replicate"] for row in folder.checks}
    everything = list(turns(plan, questions))
    current = -1
    for number, turn in enumerate(everything):
        if turn.key in done:
            continue
        if turn.replicate != current:
            current = turn.replicate
            service.traces.clear()
            if current not in checked:
                folder.add_check(check(service, plan, questions, current))
            restore(service, [row for row in folder.records if row["replicate"] == current])
        before = service.counters.to_dict()
        record = service.answer_now(turn.request)
        folder.add_record(_row(turn, record, service.counters.since(before)))
        if progress:
            progress(number + 1, len(everything))


def check(service: AgentService, plan: RunPlan, questions: Sequence[Question], replicate: int) -> dict[str, Any]:
    """Contamination: questions that a stored trace answers before any was asked. Probe: a trace that was put there is
    recalled with memory on and not with it off; afterwards it is cleared."""
    limits = service.limits
    hits = [q.id for q in questions if service.traces.search_outputs(q.text, limits.recall_threshold, 1)]
    probe = AgentRequest(questions[0].text, "probe", scope=(), seed=plan.seed)
    found: dict[str, Any] = {}
    if not hits:
        service.traces.store_qkv("probe", probe.question, "final_answer", "probe")
        on, off = (service.answer_now(as_arm(probe, arm)) for arm in ("coa-pkv", "coa-nokv"))
        found = {"on": _recall_path(on), "off": _recall_path(off)}
        service.traces.clear()
    return {"replicate": replicate, "contaminated": hits, "probe": found}


def _recall_path(record: QueryRecord) -> dict[str, Any]:
    names = [span.name for span in record.spans]
    return {
        "outcome": record.outcome,
        "cause": record.cause,
        "searches": sum(name.startswith("search_outputs") for name in names),
        "writes": sum(name.startswith("store_qkv") for name in names),
        "recalled": list(record.recalled),
    }


def restore(service: AgentService, rows: Sequence[dict[str, Any]]) -> None:
    """Write the traces of records again: a run that goes on recalls what it would have recalled."""
    for row in rows:
        if row["recall_allowed"]:
            for step in row["steps"]:
                if step["agent"] == "reasoner":
                    key, part = f"reasoning_loop_{step['loop']}", step["question"]
                elif step["agent"] == "synthesiser":
                    key, part = "final_answer" if step["loop"] == 1 else f"final_answer_{step['loop']}", 0
                else:
                    continue
                service.traces.store_qkv(row["query"], row["request"]["question"], key, step["text"], part)


def _row(turn: Turn, record: QueryRecord, counters: dict[str, int]) -> dict[str, Any]:
    failed, gold = record.failed, turn.question.answers
    return {
        "replicate": turn.replicate,
        "arm": turn.arm,
        "question_id": turn.question.id,
        "cell": turn.question.cell,
        "position": turn.position,
        "gold": list(gold),
        "failed": failed,
        "f1": 0.0 if failed else token_f1(record.answer, gold),
        "exact_match": 0.0 if failed else exact_match(record.answer, gold),
        "counters": counters,
        **record.to_dict(),
    }
