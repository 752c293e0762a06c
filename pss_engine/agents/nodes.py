"""The nodes: a prompt, an endpoint, and how a reply is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pss_engine.agents.calls import Calls
from pss_engine.agents.endpoint import Endpoint
from pss_engine.agents.limits import Limits
from pss_engine.agents.messages import Verdict
from pss_engine.agents.prompts import render
from pss_engine.agents.replies import FORMS, Malformed, free_text
from pss_engine.errors import ConfigError

T = TypeVar("T")
AGENTS = ("decomposer", "retriever", "reasoner", "critic", "synthesiser", "answer_critic")


class Unreadable(Exception):
    """A node whose reply stayed malformed after all repairs."""


@dataclass(frozen=True)
class Model:
    """An endpoint and the set of prompts that suits it: ``small`` or ``large``."""

    endpoint: Endpoint
    prompts: str = "small"

    def __post_init__(self) -> None:
        if self.prompts not in FORMS:
            raise ConfigError(f"prompts {self.prompts!r} are unknown; choices: {', '.join(FORMS)}")


class Node(Generic[T]):
    """One agent.

    Args:
        template: name of its prompt.
        read: reply to value; raises Malformed.
        stop: texts that end a reply.
    """

    def __init__(
        self,
        agent: str,
        template: str,
        model: Model,
        max_new_tokens: int,
        max_repairs: int,
        read: Callable[[str], T],
        stop: tuple[str, ...] = (),
    ) -> None:
        self.agent, self._template, self.model, self._read = agent, template, model, read
        self._max_new_tokens, self._max_repairs, self._stop = max_new_tokens, max_repairs, stop

    async def ask(self, calls: Calls, **values: str) -> T:
        """The value of the reply.

        Raises:
            Unreadable: malformed, and asked for again ``max_repairs`` times.
            Fault, BudgetSpent: see :meth:`Calls.make`.
        """
        prompts, counters = self.model.prompts, calls.counters
        messages = render(prompts, self._template, values)
        with calls.spans.span("invoke_agent", self.agent, gen_ai__agent__name=self.agent):
            for repair in range(self._max_repairs + 1):
                done = await calls.make(
                    self.agent, self.model.endpoint, messages, self._max_new_tokens, stop=self._stop
                )
                try:
                    value = self._read(done.text)
                except Malformed as error:
                    counters.num_malformed += 1
                    reason = str(error)
                    ask_again = render(prompts, "repair", {"reason": reason})
                    messages = [*messages, {"role": "assistant", "content": done.text}, *ask_again]
                    continue
                counters.num_repaired += repair > 0
                return value
            counters.num_unreadable += 1
            raise Unreadable(f"{self.agent}: {reason}")


class Nodes:
    """The six nodes and the answerer of the arms without agents, over the same endpoints.

    Args:
        models: of each of ``AGENTS``; the answerer has the Reasoner's.

    Raises:
        ConfigError: an agent without a model, or an unknown one.
    """

    def __init__(self, models: Mapping[str, Model], limits: Limits) -> None:
        if set(models) != set(AGENTS):
            raise ConfigError(f"models are given for {', '.join(sorted(models))}; needed: {', '.join(AGENTS)}")
        self.models, self.limits = dict(models), limits
        forms = {agent: FORMS[model.prompts] for agent, model in models.items()}
        threshold = limits.threshold
        self.decomposer: Node[tuple[str, ...]] = self._node(
            "decomposer", lambda text: forms["decomposer"].questions(text, limits.max_questions)
        )
        self.retriever: Node[str] = self._node("retriever", forms["retriever"].search, one_line=True)
        self.reasoner: Node[str] = self._node("reasoner", free_text)
        self.critic: Node[Verdict] = self._node(
            "critic", lambda text: forms["critic"].verdict(text, threshold), one_line=True
        )
        self.synthesiser: Node[str] = self._node("synthesiser", forms["synthesiser"].answer)
        self.answer_critic: Node[Verdict] = self._node(
            "answer_critic", lambda text: forms["answer_critic"].answer_verdict(text, threshold), one_line=True
        )
        self.answerer: Node[str] = self._node("reasoner", forms["reasoner"].answer, "answerer")

    def _node(self, agent: str, read: Callable[[str], T], template: str = "", one_line: bool = False) -> Node[T]:
        limits, template, model = self.limits, template or agent, self.models[agent]
        stop = FORMS[model.prompts].end if one_line else ()
        return Node(agent, template, model, limits.max_tokens[template], limits.max_repairs, read, stop)
