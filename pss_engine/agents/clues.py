"""Search texts from a session state: where the memory of a session meets the agents (PSS, section 2.4)."""

from __future__ import annotations

from collections.abc import Mapping

from pss_engine.agents.calls import Calls
from pss_engine.agents.endpoint import Endpoint
from pss_engine.agents.faults import Fault
from pss_engine.writer import INSTRUCTION, clue_messages


class Clues:
    """State on, clue, state off: the one call of a query that is decoded with a state.

    Args:
        endpoint: the engine of this process, in which the state is registered.
        instructions: by session, what its state was trained on; the writer's own where a session is not named.
    """

    def __init__(
        self, endpoint: Endpoint, max_new_tokens: int = 64, instructions: Mapping[str, str] | None = None
    ) -> None:
        self._endpoint, self._max_new_tokens, self._instructions = endpoint, max_new_tokens, dict(instructions or {})

    async def tell(self, calls: Calls, session: str, question: str) -> str:
        """The clue for a question. Raises Fault where it is empty: nothing else is searched in its place."""
        messages = clue_messages(self._instructions.get(session, INSTRUCTION), question)
        with calls.spans.span("invoke_agent", "retriever", gen_ai__agent__name="retriever"):
            done = await calls.make("retriever", self._endpoint, messages, self._max_new_tokens, session)
        if not (clue := done.text.strip()):
            raise Fault("empty_clue", f"the state of session {session!r} gave an empty clue")
        calls.counters.num_clues += 1
        return clue
