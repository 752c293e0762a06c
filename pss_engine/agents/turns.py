"""Turns of the nodes: each reads what it needs from memory, asks its node once, and notes what was said.

``search_reranked`` runs in the Retriever, again in the Reasoner and again in the Synthesiser, for all arms alike;
``search_outputs`` and ``store_qkv`` (after every loop of the Reasoner, and at the final answer) run where the request
enables them, and nothing else differs (CoA-PKV, appendix A.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pss_engine.agents.calls import Calls
from pss_engine.agents.clues import Clues
from pss_engine.agents.memory import EvidencePool, Trace, TraceMemory
from pss_engine.agents.messages import Draft, Evidence, Reasoning, SubQuestions, Verdict
from pss_engine.agents.nodes import Nodes, Unreadable
from pss_engine.agents.prompts import evidence_text
from pss_engine.agents.record import Step
from pss_engine.agents.request import AgentRequest
from pss_engine.retrieval import Hit


@dataclass
class Turns:
    """The turns of one question.

    Attributes:
        clues: search texts from a session state, in place of the Retriever's; None = the Retriever gives them.
        steps: what was said, in order.
    """

    request: AgentRequest
    nodes: Nodes
    evidence: EvidencePool
    traces: TraceMemory
    calls: Calls
    steps: list[Step]
    clues: Clues | None = None

    async def decompose(self) -> SubQuestions:
        try:
            questions = await self.nodes.decomposer.ask(
                self.calls, question=self.request.question, max_questions=str(self.nodes.limits.max_questions)
            )
        except Unreadable as error:  # an undivided question is a plan, a guess at its parts is not
            self.note("decomposer", f"unreadable, the question stays whole: {error}")
            return SubQuestions((self.request.question,))
        self.note("decomposer", "\n".join(questions))
        return SubQuestions(questions)

    async def retrieve(self, at: int, loop: int, question: str, critique: str) -> Evidence:
        if self.clues is not None:
            search = await self.clues.tell(self.calls, self.request.session, question)
        else:
            try:
                search = await self.nodes.retriever.ask(self.calls, question=question, critique=_critique(critique))
            except Unreadable:  # searching with the question itself is what no Retriever would do better than
                search = question
        hits = self._search("retriever", search)
        ids = tuple(hit.passage_id for hit in hits)
        self.note("retriever", search, at, loop, passage_ids=ids)
        return Evidence(search, ids, tuple(hit.score for hit in hits))

    async def reason(self, at: int, loop: int, question: str, found: Evidence, critique: str) -> Reasoning:
        """Raises Unreadable."""
        own = [hit.passage_id for hit in self._search("reasoner", question)]
        ids = tuple(dict.fromkeys([*found.passage_ids, *own]))[: self.nodes.limits.max_passages]
        recalled = self._recall()
        self.calls.counters.num_loops += 1
        text = await self.nodes.reasoner.ask(
            self.calls,
            evidence=self._texts(ids),
            recalled=_recalled(recalled),
            question=question,
            critique=_critique(critique),
        )
        self._store(f"reasoning_loop_{loop}", text, at)
        trace_ids = tuple(trace.id for trace in recalled)
        self.note("reasoner", text, at, loop, passage_ids=ids, trace_ids=trace_ids)
        return Reasoning(question, loop, text, ids, trace_ids)

    async def judge(self, at: int, loop: int, reasoning: Reasoning) -> Verdict:
        """Raises Unreadable."""
        verdict = await self.nodes.critic.ask(
            self.calls,
            evidence=self._texts(reasoning.passage_ids),
            question=reasoning.question,
            reasoning=reasoning.text,
            threshold=f"{self.nodes.limits.threshold:.2f}",
        )
        self.note("critic", f"{verdict.route} {verdict.critique}".strip(), at, loop, score=verdict.score)
        return verdict

    async def draft(self, attempt: int, solved: str, critique: str) -> Draft:
        """Raises Unreadable."""
        ids = tuple(hit.passage_id for hit in self._search("synthesiser", self.request.question))
        answer = await self.nodes.synthesiser.ask(
            self.calls,
            evidence=self._texts(ids),
            conclusions=solved,
            question=self.request.question,
            critique=_critique(critique),
        )
        self._store("final_answer" if attempt == 1 else f"final_answer_{attempt}", answer)
        self.note("synthesiser", answer, loop=attempt, passage_ids=ids)
        return Draft(answer, attempt)

    async def judge_answer(self, attempt: int, solved: str, draft: Draft) -> Verdict:
        """Raises Unreadable."""
        verdict = await self.nodes.answer_critic.ask(
            self.calls, conclusions=solved, question=self.request.question, answer=draft.answer
        )
        self.note("answer_critic", f"{verdict.route} {verdict.critique}".strip(), loop=attempt, score=verdict.score)
        return verdict

    def note(self, agent: str, text: str, question: int = -1, loop: int = 0, **found: Any) -> None:
        self.steps.append(Step(agent, question, loop, text, **found))

    def _search(self, agent: str, text: str) -> list[Hit]:
        scope = None if self.request.scope is None else frozenset(self.request.scope)
        with self.calls.spans.span("search_reranked", agent, gen_ai__agent__name=agent):
            return self.evidence.search_reranked(text, self.nodes.limits.top_k, scope)

    def _texts(self, ids: Sequence[str]) -> str:
        return evidence_text([self.evidence[passage_id] for passage_id in ids])

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


def _critique(text: str) -> str:
    return f"An earlier attempt was rejected: {text}\n" if text else ""


def _recalled(traces: Sequence[Trace]) -> str:
    if not traces:
        return ""
    lines = "\n".join(f"- {trace.question} {trace.value}" for trace in traces)
    return f"\nConclusions on earlier questions:\n{lines}\n"
