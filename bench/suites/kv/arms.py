"""Flat (closed-book), RAG (one call over all passages) and decomposed (a call for each part) on the same questions.

RAG is retrieval-matched: it reads the passages that the decomposed calls found, all in one prompt. The parts are those
of the data; a call of the decomposer is made and counted, but what it says is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.environment import say
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.finding import backend
from bench.suites.kv.questions import Question
from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, RequestOutput, SamplingParams
from pss_engine.kv import CallUsage, QueryUsage
from pss_engine.models import LoadedModel, Message
from pss_engine.retrieval import Passage
from pss_engine.session.prompts import answer_messages

NEW_TOKENS = 64
ARMS = ("flat", "rag", "decomposed")
PARAMS = {"model": MODEL, "dtype": "float32", "max_new_tokens": NEW_TOKENS}


@dataclass
class Asked:
    """One usage for each question, by arm; ``checked``: the books balanced, and figures equal the recount of tokens."""

    backend: str
    usages: dict[str, list[QueryUsage]] = field(default_factory=dict)
    checked: bool | str = True

    @property
    def params(self) -> dict[str, object]:
        return {**PARAMS, "questions": len(self.usages[ARMS[0]])}


def ask(model: LoadedModel, questions: Sequence[Question]) -> Asked:
    """Ask every question in every arm."""
    engine = Engine(model, EngineConfig(audit_steps=16))
    asked = Asked(backend(engine))
    say(f"bench: {len(questions)} questions, decomposed")
    decomposed, found = _decomposed(engine, questions)
    say("bench: the same questions in one call each, with all passages and with none")
    whole = [answer_messages(question.text, passages) for question, passages in zip(questions, found, strict=True)]
    closed = [_user(f"Question: {question.text}\nAnswer in one sentence.") for question in questions]
    asked.usages = {
        "flat": [QueryUsage([output.usage]) for output in _calls(engine, closed, "answerer", "flat")],
        "rag": [QueryUsage([output.usage]) for output in _calls(engine, whole, "answerer", "rag")],
        "decomposed": decomposed,
    }
    engine.check()
    calls = [call for usages in asked.usages.values() for usage in usages for call in usage.calls]
    asked.checked = _check(engine, calls)
    return asked


def rows(asked: Asked) -> Iterator[Measurement]:
    for arm in ARMS:
        usages = asked.usages[arm]
        params = {**asked.params, "arm": arm}
        metrics: dict[str, tuple[str, list[float]]] = {
            "kv_peak_bytes": ("bytes", [usage.kv_peak_bytes for usage in usages]),
            "kv_cumulative_bytes": ("bytes", [usage.kv_cumulative_bytes for usage in usages]),
            "declared_to_measured": ("ratio", [usage.declared_to_measured for usage in usages]),
            "prompt_tokens": ("tokens", [float(usage.prompt_tokens) for usage in usages]),
            "generated_tokens": ("tokens", [float(usage.generated_tokens) for usage in usages]),
        }
        for metric, (unit, samples) in metrics.items():
            yield _row("three ways to answer", params, asked, metric, unit, samples)
    pairs = list(zip(asked.usages["decomposed"], asked.usages["rag"], strict=True))
    for metric, name in (("peak", "kv_peak_bytes"), ("cumulative", "kv_cumulative_bytes")):
        samples = [getattr(ours, name) / getattr(rag, name) for ours, rag in pairs]
        yield _row("decomposed over RAG, by question", asked.params, asked, metric, "ratio", samples)
    peaks = [usage.peak_call for usage in asked.usages["decomposed"]]
    for agent in ("decomposer", "reasoner", "synthesiser"):
        share = sum(call is not None and call.agent == agent for call in peaks) / len(peaks)
        params = {**asked.params, "agent": agent}
        name = "whose call is the peak of a decomposed question"
        yield Measurement(name, params, asked.backend, "share", "share", [share], asked.checked, len(peaks))


def _decomposed(engine: Engine, questions: Sequence[Question]) -> tuple[list[QueryUsage], list[list[Passage]]]:
    """Stage by stage, all questions together; each part waits for the answers before it."""
    name = "decomposed"
    prompts = [_user(f"Split the question into simpler ones, one a line.\nQuestion: {q.text}") for q in questions]
    usages = [QueryUsage([output.usage]) for output in _calls(engine, prompts, "decomposer", name)]
    answers: list[list[str]] = [[] for _ in questions]
    found: list[dict[str, Passage]] = [{} for _ in questions]
    for at in range(max(len(question.parts) for question in questions)):
        active = [i for i, question in enumerate(questions) if at < len(question.parts)]
        parts = {i: questions[i].part(at, answers[i]) for i in active}
        passages = {i: questions[i].search(parts[i]) for i in active}
        outputs = _calls(engine, [answer_messages(parts[i], passages[i]) for i in active], "reasoner", name, active)
        for i, output in zip(active, outputs, strict=True):
            usages[i].calls.append(output.usage)
            answers[i].append(" ".join(output.text.split()))
            found[i].update({passage.id: passage for passage in passages[i]})
    prompts = [
        _user(
            "\n".join(f"{question.part(at, said)} {answer}" for at, answer in enumerate(said))
            + f"\n\nQuestion: {question.text}\nAnswer from the lines above."
        )
        for question, said in zip(questions, answers, strict=True)
    ]
    for usage, output in zip(usages, _calls(engine, prompts, "synthesiser", name), strict=True):
        usage.calls.append(output.usage)
    return usages, [list(passages.values()) for passages in found]


def _calls(
    engine: Engine, prompts: Sequence[list[Message]], agent: str, arm: str, numbers: Sequence[int] | None = None
) -> list[RequestOutput]:
    params = SamplingParams(max_new_tokens=NEW_TOKENS)
    places = range(len(prompts)) if numbers is None else numbers
    requests = [
        Request(prompt, params, agent=agent, query=f"{arm}-{i}", scope=f"{arm}-{i}")
        for i, prompt in zip(places, prompts, strict=True)
    ]
    return engine.generate(requests)


def _check(engine: Engine, calls: Sequence[CallUsage]) -> bool | str:
    """Logical peak = stored tokens, all but the last, times the bytes that the cache's tensors have for a token."""
    cache = engine.memory.geometry
    wrong = sum(
        call.kv_peak_bytes != (call.prompt_tokens + call.generated_tokens - 1) * cache.bytes_per_token for call in calls
    )
    if engine.counters.num_audit_alarms:
        return f"the books did not balance {engine.counters.num_audit_alarms} times"
    return not wrong or f"{wrong} of {len(calls)} calls differ from the recount of their tokens"


def _row(
    case: str, params: dict[str, object], asked: Asked, metric: str, unit: str, samples: list[float]
) -> Measurement:
    return Measurement(case, params, asked.backend, metric, unit, samples, asked.checked)


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
