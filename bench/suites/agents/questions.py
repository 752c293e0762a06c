"""What agents hold in KV against flat and RAG calls on real multi-hop questions, and what enabling recall adds.

A 135M model's answers are poor and are reported as such, beside how many of its replies could not be read; KV bytes
are the point.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL, Options, Skipped
from bench.suites.agents.service import Agents
from bench.suites.finding import backend
from pss_engine.agents import Limits
from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.evaluation.ablation import OFF, ON, ablation
from pss_engine.evaluation.plan import RunPlan
from pss_engine.evaluation.questions import Question, load_questions
from pss_engine.evaluation.run import RunFolder
from pss_engine.evaluation.run import run as ask
from pss_engine.evaluation.summary import MEASURES, outcomes
from pss_engine.models import LoadedModel, load_model
from pss_engine.retrieval import Encoder

FILE = "multihop_qa.jsonl"
ARMS = ("flat", "rag", OFF, ON)
UNITS = {
    "kv_peak_bytes": "bytes",
    "kv_cumulative_bytes": "bytes",
    "declared_to_measured": "ratio",
    "seconds": "s",
    "num_calls": "steps",
    "prompt_tokens": "tokens",
    "generated_tokens": "tokens",
    "f1": "share",
    "exact_match": "share",
}
SEED = 42


def run(options: Options) -> Iterator[Measurement]:
    path = options.data / FILE
    if not path.is_file():
        raise Skipped(f"no {FILE} in the data folder; name one with --data FOLDER or PSS_DATA")
    questions = load_questions(path, 4 if options.quick else 15, SEED)
    yield from measure(load_model(MODEL, device="cpu"), Encoder(), questions, Limits())


def measure(
    model: LoadedModel, encoder: Encoder, questions: Sequence[Question], limits: Limits
) -> Iterator[Measurement]:
    """Rows of all arms over one set of questions."""
    engine = Engine(model, EngineConfig(audit_steps=16))
    agents = Agents.over(engine, encoder, [p for q in questions for p in q.passages], limits)
    service = agents.service
    cells = [question.cell for question in questions]
    plan = RunPlan(
        ARMS,
        tuple(question.id for question in questions),
        1,
        SEED,
        FILE,
        {cell: cells.count(cell) for cell in sorted(set(cells))},
        service.describe(),
        json.loads(json.dumps(asdict(limits))),
        {},
    )
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as temporary:
        folder = RunFolder(Path(temporary), plan)
        say(f"bench: {len(questions)} questions in {len(ARMS)} arms")
        ask(service, plan, questions, folder)
    agents.close()
    alarms = engine.counters.num_audit_alarms
    checked = _recounted(engine, folder.records) if not alarms else f"the books did not balance {alarms} times"
    params = {"model": model.name, "questions": len(questions), "encoder": encoder.name}
    yield from _rows(folder.records, params, backend(engine), checked)
    yield from _effects(
        ablation(folder.config, folder.records, folder.checks, encoder), params, backend(engine), checked
    )


def _rows(
    records: Sequence[dict[str, Any]], params: dict[str, Any], name: str, checked: bool | str
) -> Iterator[Measurement]:
    for arm in ARMS:
        rows = [row for row in records if row["arm"] == arm]
        told = {**params, "arm": arm, "failed": sum(row["failed"] for row in rows), "outcomes": outcomes(rows)}
        for metric, value in MEASURES.items():
            held = rows if metric in ("f1", "exact_match") else [row for row in rows if row["usage"]["kv_peak_bytes"]]
            samples = [value(row) for row in held]
            if UNITS[metric] == "share":
                samples = [sum(samples) / len(samples)]
            if samples:
                yield Measurement("an arm", told, name, metric, UNITS[metric], samples, checked, len(held))
        calls, malformed = (sum(row["counters"][key] for row in rows) for key in ("num_calls", "num_malformed"))
        yield Measurement("an arm", told, name, "malformed_replies", "share", [malformed / calls], checked, calls)
        peaks = [row["usage"]["kv_peak_call"]["agent"] for row in rows if row["usage"]["kv_peak_call"]]
        for agent in sorted(set(peaks)):
            share = peaks.count(agent) / len(peaks)
            where = {**params, "arm": arm, "agent": agent}
            yield Measurement("whose call is the peak", where, name, "share", "share", [share], checked, len(peaks))


def _effects(found: dict[str, Any], params: dict[str, Any], name: str, checked: bool | str) -> Iterator[Measurement]:
    """What recall adds, by cell. A cell that may not be believed has no effect, only the reasons why."""
    for cell, result in found["cells"].items():
        where = {**params, "cell": cell}
        reach, effects, gaps = result["reachability"]["as_sent"], result["effects"], "; ".join(result["gaps"])
        admitted = [float(result["admitted"])]
        yield Measurement("recall", where, name, "admitted", "share", admitted, gaps or checked, params["questions"])
        if reach is not None:
            yield Measurement("recall", where, name, "reachable", "share", [reach], checked, params["questions"])
        for metric, unit in (("kv_peak_bytes", "bytes"), ("f1", "share")):
            effect = (effects or {}).get(metric)
            for end in ("estimate", "low", "high") if effect else ():
                case = f"enabled minus disabled, {end}"
                yield Measurement(case, where, name, metric, unit, [effect[end]], checked, effect["n"])


def _recounted(engine: Engine, records: Sequence[dict[str, Any]]) -> bool | str:
    """Peak = stored tokens, all but the last, times the bytes that the cache's tensors have for a token."""
    per_token = engine.memory.geometry.bytes_per_token
    calls = [call for row in records for call in row["usage"]["calls"]]
    wrong = sum(
        call["kv_peak_bytes"] != (call["prompt_tokens"] + call["generated_tokens"] - 1) * per_token for call in calls
    )
    return not wrong or f"{wrong} of {len(calls)} calls differ from the recount of their tokens"
