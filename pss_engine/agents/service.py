"""``AgentService``: questions in, records out; the one place that reads a request's fields."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Mapping
from typing import Any

from pss_engine.agents.calls import BudgetSpent, Calls
from pss_engine.agents.clues import Clues
from pss_engine.agents.faults import Fault
from pss_engine.agents.limits import Limits
from pss_engine.agents.memory import EvidencePool, KeyValueStore, TraceMemory, Units
from pss_engine.agents.nodes import AGENTS, Model, Nodes, Unreadable
from pss_engine.agents.pipeline import GaveUp, Pipeline
from pss_engine.agents.prompts import evidence_text
from pss_engine.agents.record import QueryRecord, Step
from pss_engine.agents.request import AgentRequest
from pss_engine.agents.turns import Turns
from pss_engine.errors import RequestRejected
from pss_engine.metrics import AgentCounters


class AgentService:
    """The agent pipeline and the arms that it is compared with, over the same endpoints and the same evidence.

    Args:
        models: the Model of each of ``AGENTS``.
        units: storage of tier 2; evidence and traces: the two roles of tier 3.
        clues: for requests with a session; None: such requests are refused.
        ttl_s: seconds that Communication Units live in tier 2.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        evidence: EvidencePool,
        traces: TraceMemory,
        units: KeyValueStore,
        counters: AgentCounters,
        limits: Limits | None = None,
        clues: Clues | None = None,
        ttl_s: float | None = 3600.0,
    ) -> None:
        self.limits = limits or Limits()
        self.nodes = Nodes(models, self.limits)
        self.evidence, self.traces, self.counters = evidence, traces, counters
        self._units, self._clues, self._ttl_s = units, clues, ttl_s
        # two services on one storage must not read each other's units
        self._ids = (f"{uuid.uuid4().hex[:12]}-{number}" for number in itertools.count())

    async def answer(self, request: AgentRequest, query: str = "") -> QueryRecord:
        """One question, to its end; what goes wrong inside is in the record, with its cause.

        Args:
            query: id of the query; give that of a query that was killed to go on with it. Empty: a new one.

        Raises:
            RequestRejected: a session, and the service has no clues.
        """
        if request.session and self._clues is None:
            raise RequestRejected("the request names a session, and the service was made without clues")
        calls = Calls(query or next(self._ids), request.seed, self.limits.most_calls, self.counters)
        record = QueryRecord(calls.query, request, recall_allowed=request.kv_enabled)
        start = time.monotonic()
        try:
            with calls.spans.span("invoke_workflow", request.pipeline, gen_ai__conversation__id=calls.query):
                record.answer, judged = await self._run(request, calls, record)
            record.outcome = "accepted" if judged else "unjudged"
        except GaveUp as error:
            record.answer, record.outcome, record.cause = error.answer, "gave_up", "rejected"
        except BudgetSpent:
            record.outcome, record.cause = "gave_up", "max_calls"
        except Fault as error:
            record.outcome, record.cause = "failed", error.cause
            record.steps.append(Step("fault", -1, 0, str(error)))
        record.seconds = time.monotonic() - start
        record.usage, record.calls, record.spans = calls.usage, calls.records, calls.spans.all
        record.recalled = tuple(dict.fromkeys(name for step in record.steps for name in step.trace_ids))
        return record

    def answer_now(self, request: AgentRequest, query: str = "") -> QueryRecord:
        """:meth:`answer` from code without an event loop."""
        return asyncio.run(self.answer(request, query))

    def describe(self) -> dict[str, Any]:
        """For run records: each agent's endpoint and prompts."""
        models = self.nodes.models
        return {agent: {**models[agent].endpoint.describe(), "prompts": models[agent].prompts} for agent in AGENTS}

    async def _run(self, request: AgentRequest, calls: Calls, record: QueryRecord) -> tuple[str, bool]:
        if request.pipeline != "coa":
            return await self._single(request, calls, record)
        units = Units(self._units, calls.query, self.counters, self._ttl_s)
        clues = self._clues if request.session else None
        turns = Turns(request, self.nodes, self.evidence, self.traces, calls, record.steps, clues)
        return await Pipeline(turns, units).run()

    async def _single(self, request: AgentRequest, calls: Calls, record: QueryRecord) -> tuple[str, bool]:
        """Flat and RAG: one call of the Reasoner's model, then the same answer critic, whose verdict is recorded."""
        ids: tuple[str, ...] = ()
        if request.pipeline == "rag":
            scope = None if request.scope is None else frozenset(request.scope)
            with calls.spans.span("search_reranked", "reasoner", gen_ai__agent__name="reasoner"):
                hits = self.evidence.search_reranked(request.question, self.limits.rag_top_k, scope)
            ids = tuple(hit.passage_id for hit in hits)
        passages = [self.evidence[passage_id] for passage_id in ids]
        read = evidence_text(passages) if request.pipeline == "rag" else ""
        try:
            answer = await self.nodes.answerer.ask(calls, evidence=read, question=request.question)
        except Unreadable as error:
            raise GaveUp("") from error
        record.steps.append(Step("reasoner", -1, 1, answer, ids))
        try:
            verdict = await self.nodes.answer_critic.ask(
                calls, conclusions="", question=request.question, answer=answer
            )
        except Unreadable as error:
            record.steps.append(Step("answer_critic", -1, 1, f"unreadable: {error}"))
            return answer, False
        record.steps.append(Step("answer_critic", -1, 1, verdict.critique, score=verdict.score))
        if verdict.route != "accept":
            self.counters.num_rejections += 1
        return answer, True
