"""The controller: Decomposer, then for each sub-question Retriever, Reasoner and Critic in a loop, then Synthesiser.

The sequence is that of CoA-PKV, appendix A.1.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from pss_engine.agents.memory import Units
from pss_engine.agents.messages import Draft, Evidence, Reasoning, SubQuestions, Verdict
from pss_engine.agents.nodes import Unreadable
from pss_engine.agents.replies import fill, references
from pss_engine.agents.turns import Turns

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
        units: what finished turns said; a query that was killed takes it from there.
    """

    turns: Turns
    units: Units

    async def run(self) -> tuple[str, bool]:
        """The answer, and whether a verdict on it could be read.

        Raises:
            GaveUp, Fault, BudgetSpent: see :class:`QueryRecord`.
        """
        plan = await self.units.take("plan", SubQuestions, self.turns.decompose)
        tasks: list[asyncio.Task[str]] = []
        for at, question in enumerate(plan.questions):
            needed = {other: tasks[other] for other in references(question)}
            tasks.append(asyncio.create_task(self._solve(at, question, needed)))
        conclusions = await _all(tasks)
        return await self._synthesise(plan.questions, conclusions)

    async def _solve(self, at: int, question: str, needed: dict[int, asyncio.Task[str]]) -> str:
        """The conclusion on one sub-question, after those that it needs."""
        question = fill(question, {other: await task for other, task in needed.items()})
        turns, counters, max_loops = self.turns, self.turns.calls.counters, self.turns.nodes.limits.max_loops
        critique, route = "", "re-retrieve"
        best: tuple[float, str] = (-1.0, "")
        found = Evidence("", (), ())
        for loop in range(1, max_loops + 1):
            place = f"{at}/{loop}"
            if route == "re-retrieve":
                found = await self.units.take(
                    f"evidence/{place}", Evidence, turns.retrieve, at, loop, question, critique
                )
            try:
                reasoning = await self.units.take(
                    f"reasoning/{place}", Reasoning, turns.reason, at, loop, question, found, critique
                )
            except Unreadable:
                break
            try:
                verdict = await self.units.take(f"verdict/{place}", Verdict, turns.judge, at, loop, reasoning)
            except Unreadable as error:  # no verdict is neither a yes nor a no: the conclusion goes on, unjudged
                turns.note("critic", f"unreadable: {error}", at, loop)
                return reasoning.text
            if verdict.route == "accept":
                return reasoning.text
            best = max(best, (verdict.score, reasoning.text), key=lambda pair: pair[0])
            route, critique = verdict.route, verdict.critique
            counters.num_rejections += 1
            if loop < max_loops:
                counters.num_re_retrieved += route == "re-retrieve"
                counters.num_re_reasoned += route == "re-reason"
        counters.num_gave_up += 1
        turns.note("critic", "gave up; the conclusion of the best score goes on", at, loop)
        return best[1]

    async def _synthesise(self, questions: tuple[str, ...], conclusions: list[str]) -> tuple[str, bool]:
        turns, counters = self.turns, self.turns.calls.counters
        solved = "\n".join(f"{question} {said}" for question, said in zip(questions, conclusions, strict=True))
        critique = ""
        for attempt in range(1, turns.nodes.limits.max_loops + 1):
            try:
                draft = await self.units.take(f"draft/{attempt}", Draft, turns.draft, attempt, solved, critique)
            except Unreadable as error:
                raise GaveUp("") from error
            try:
                verdict = await self.units.take(
                    f"answer_verdict/{attempt}", Verdict, turns.judge_answer, attempt, solved, draft
                )
            except Unreadable as error:
                turns.note("answer_critic", f"unreadable: {error}", loop=attempt)
                return draft.answer, False
            if verdict.route == "accept":
                return draft.answer, True
            counters.num_rejections += 1
            critique = verdict.critique
        counters.num_gave_up += 1
        raise GaveUp(draft.answer)


async def _all(tasks: list[asyncio.Task[T]]) -> list[T]:
    """Results of tasks; the first error ends the others before it is raised."""
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
