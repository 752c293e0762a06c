"""The controller: Decomposer, then for each sub-question Retriever, Reasoner and Critic in a loop, then Synthesiser.

The sequence is that of CoA-PKV, appendix A.1: ``search_reranked`` runs in the Retriever, again in the Reasoner and
again in the Synthesiser, for all arms alike; ``search_outputs`` and ``store_qkv`` (after every loop of the Reasoner,
and at the final answer) run where the request enables them, and nothing else differs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

from pss_engine.agents.calls import Calls
from pss_engine.agents.clues import Clues
from pss_engine.agents.memory import EvidencePool, Trace, TraceMemory, Units
from pss_engine.agents.messages import Draft, Evidence, Reasoning, SubQuestions, Verdict
from pss_engine.agents.nodes import Nodes, Unreadable
from pss_engine.agents.prompts import evidence_text
from pss_engine.agents.record import Step
from pss_engine.agents.replies import fill, references
from pss_engine.agents.request import AgentRequest

T = TypeVar("T")


class GaveUp(Exception):
    """No attempt at the answer was accepted; ``answer`` is the last one."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        super().__init__("the answer critic accepted no attempt")


@dataclass
class Pipeline:
    """One question on its way through the nodes.

    Attributes:
        clues: search texts from a session state, in place of the Retriever's; None = the Retriever gives them.
        steps: what was said, in order.
    """

    request: AgentRequest
    nodes: Nodes
    evidence: EvidencePool
    traces: TraceMemory
    units: Units
    calls: Calls
    steps: list[Step]
    clues: Clues | None = None

    async def run(self) -> tuple[str, bool]:
        """The answer, and whether a verdict on it could be read.

        Raises:
            GaveUp, Fault, BudgetSpent: see :class:`QueryRecord`.
        """
        plan = await self.units.take("plan", SubQuestions, self._decompose)
        tasks: list[asyncio.Task[str]] = []
        for at, question in enumerate(plan.questions):
            needed = {other: tasks[other] for other in references(question)}
            tasks.append(asyncio.create_task(self._solve(at, question, needed)))
        conclusions = await _all(tasks)
        return await self._synthesise(plan.questions, conclusions)

    async def _decompose(self) -> SubQuestions:
        try:
            questions = await self.nodes.decomposer.ask(
                self.calls, question=self.request.question, max_questions=str(self.nodes.limits.max_questions)
            )
        except Unreadable as error:  # an undivided question is a plan, a guess at its parts is not
            self._note("decomposer", f"unreadable, the question stays whole: {error}")
            return SubQuestions((self.request.question,))
        self._note("decomposer", "\n".join(questions))
        return SubQuestions(questions)

    async def _solve(self, at: int, question: str, needed: dict[int, asyncio.Task[str]]) -> str:
        """The conclusion on one sub-question, after those that it needs."""
        question = fill(question, {other: await task for other, task in needed.items()})
        counters, critique, route = self.calls.counters, "", "re-retrieve"
        best: tuple[float, str] = (-1.0, "")
        found = Evidence("", (), ())
        for loop in range(1, self.nodes.limits.max_loops + 1):
            place = f"{at}/{loop}"
            if route == "re-retrieve":
                found = await self.units.take(
                    f"evidence/{place}", Evidence, self._retrieve, at, loop, question, critique
                )
            try:
                reasoning = await self.units.take(
                    f"reasoning/{place}", Reasoning, self._reason, at, loop, question, found, critique
                )
            except Unreadable:
                break
            try:
                verdict = await self.units.take(f"verdict/{place}", Verdict, self._judge, at, loop, reasoning)
            except Unreadable as error:  # no verdict is neither a yes nor a no: the conclusion goes on, unjudged
                self._note("critic", f"unreadable: {error}", at, loop)
                return reasoning.text
            if verdict.route == "accept":
                return reasoning.text
            best = max(best, (verdict.score, reasoning.text), key=lambda pair: pair[0])
            route, critique = verdict.route, verdict.critique
            counters.num_rejections += 1
            if loop < self.nodes.limits.max_loops:
                counters.num_re_retrieved += route == "re-retrieve"
                counters.num_re_reasoned += route == "re-reason"
        counters.num_gave_up += 1
        self._note("critic", "gave up; the conclusion of the best score goes on", at, loop)
        return best[1]

    async def _retrieve(self, at: int, loop: int, question: str, critique: str) -> Evidence:
        if self.clues is not None:
            search = await self.clues.tell(self.calls, self.request.session, question)
        else:
            try:
                search = await self.nodes.retriever.ask(self.calls, question=question, critique=_critique(critique))
            except Unreadable:  # searching with the question itself is what no Retriever would do better than
                search = question
        hits = self._search("retriever", search, self.nodes.limits.top_k)
        ids = tuple(hit.passage_id for hit in hits)
        self._note("retriever", search, at, loop, passage_ids=ids)
        return Evidence(search, ids, tuple(hit.score for hit in hits))

    async def _reason(self, at: int, loop: int, question: str, found: Evidence, critique: str) -> Reasoning:
        limits = self.nodes.limits
        own = [hit.passage_id for hit in self._search("reasoner", question, limits.top_k)]
        ids = tuple(dict.fromkeys([*found.passage_ids, *own]))[: limits.max_passages]
        recalled = self._recall()
        self.calls.counters.num_loops += 1
        text = await self.nodes.reasoner.ask(
            self.calls,
            evidence=evidence_text([self.evidence[passage_id] for passage_id in ids]),
            recalled=_recalled(recalled),
            question=question,
            critique=_critique(critique),
        )
        self._store(f"reasoning_loop_{loop}", text, at)
        trace_ids = tuple(trace.id for trace in recalled)
        self._note("reasoner", text, at, loop, passage_ids=ids, trace_ids=trace_ids)
        return Reasoning(question, loop, text, ids, trace_ids)

    async def _judge(self, at: int, loop: int, reasoning: Reasoning) -> Verdict:
        verdict = await self.nodes.critic.ask(
            self.calls,
            evidence=evidence_text([self.evidence[passage_id] for passage_id in reasoning.passage_ids]),
            question=reasoning.question,
            reasoning=reasoning.text,
            threshold=f"{self.nodes.limits.threshold:.2f}",
        )
        self._note("critic", f"{verdict.route} {verdict.critique}".strip(), at, loop, score=verdict.score)
        return verdict

    async def _synthesise(self, questions: tuple[str, ...], conclusions: list[str]) -> tuple[str, bool]:
        solved = "\n".join(f"{question} {said}" for question, said in zip(questions, conclusions, strict=True))
        critique = ""
        for attempt in range(1, self.nodes.limits.max_loops + 1):
            draft = await self.units.take(f"draft/{attempt}", Draft, self._draft, attempt, solved, critique)
            try:
                verdict = await self.units.take(
                    f"answer_verdict/{attempt}", Verdict, self._judge_answer, attempt, solved, draft
                )
            except Unreadable as error:
                self._note("answer_critic", f"unreadable: {error}", loop=attempt)
                return draft.answer, False
            if verdict.route == "accept":
                return draft.answer, True
            self.calls.counters.num_rejections += 1
            critique = verdict.critique
        self.calls.counters.num_gave_up += 1
        raise GaveUp(draft.answer)

    async def _draft(self, attempt: int, solved: str, critique: str) -> Draft:
        hits = self._search("synthesiser", self.request.question, self.nodes.limits.top_k)
        ids = tuple(hit.passage_id for hit in hits)
        try:
            answer = await self.nodes.synthesiser.ask(
                self.calls,
                evidence=evidence_text([self.evidence[passage_id] for passage_id in ids]),
                conclusions=solved,
                question=self.request.question,
                critique=_critique(critique),
            )
        except Unreadable as error:
            raise GaveUp("") from error
        self._store("final_answer" if attempt == 1 else f"final_answer_{attempt}", answer)
        self._note("synthesiser", answer, loop=attempt, passage_ids=ids)
        return Draft(answer, attempt)

    async def _judge_answer(self, attempt: int, solved: str, draft: Draft) -> Verdict:
        verdict = await self.nodes.answer_critic.ask(
            self.calls, conclusions=solved, question=self.request.question, answer=draft.answer
        )
        self._note("answer_critic", f"{verdict.route} {verdict.critique}".strip(), loop=attempt, score=verdict.score)
        return verdict

    # memory

    def _search(self, agent: str, text: str, k: int) -> list[Any]:
        with self.calls.spans.span("search_reranked", agent, gen_ai__agent__name=agent):
            return list(self.evidence.search_reranked(text, k, _scope(self.request)))

    def _recall(self) -> list[Trace]:
        if not self.request.kv_enabled:
            return []
        limits = self.nodes.limits
        with self.calls.spans.span("search_outputs", "reasoner", gen_ai__agent__name="reasoner") as span:
            found = self.traces.search_outputs(
                self.request.question, limits.recall_threshold, limits.max_recalled, self.calls.query
            )
            span.attributes["pss.recalled"] = len(found)
        return found

    def _store(self, key: str, value: str, part: int = 0) -> None:
        if self.request.kv_enabled:
            with self.calls.spans.span("store_qkv", key):
                self.traces.store_qkv(self.calls.query, self.request.question, key, value, part)

    def _note(self, agent: str, text: str, question: int = -1, loop: int = 0, **found: Any) -> None:
        self.steps.append(Step(agent, question, loop, text, **found))


async def _all(tasks: list[asyncio.Task[T]]) -> list[T]:
    """Results of tasks; the first error ends the others before it is raised."""
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _scope(request: AgentRequest) -> frozenset[str] | None:
    return None if request.scope is None else frozenset(request.scope)


def _critique(text: str) -> str:
    return f"An earlier attempt was rejected: {text}\n" if text else ""


def _recalled(traces: list[Trace]) -> str:
    if not traces:
        return ""
    lines = "\n".join(f"- {trace.question} {trace.value}" for trace in traces)
    return f"\nConclusions on earlier questions:\n{lines}\n"
