"""The engine of this process as an endpoint: calls that wait together decode in one batch."""

from __future__ import annotations

from typing import Any

from pss_engine.agents.endpoint import Call, Completion
from pss_engine.agents.faults import Fault
from pss_engine.engine import AsyncEngine, Request, SamplingParams
from pss_engine.errors import RequestRejected, SessionNotFound


class EngineEndpoint:
    """See :class:`Endpoint`.

    Args:
        name: of the model, for records.
    """

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self.name, self._engine = name, engine

    async def complete(self, call: Call) -> Completion:
        sampling = SamplingParams(
            max_new_tokens=call.max_new_tokens, temperature=call.temperature, seed=call.seed, stop=call.stop
        )
        request = Request(
            list(call.messages),
            sampling,
            session=call.session,
            agent=call.agent,
            query=call.query,
            scope=call.query,
        )
        try:
            output = await self._engine.generate(request)
        except RequestRejected as error:
            raise Fault("rejected", str(error)) from None
        except SessionNotFound as error:
            raise Fault("no_session", str(error)) from None
        if output.finish_reason not in ("stop", "length"):
            raise Fault("engine", f"call of {call.agent} ended with {output.finish_reason}: {output.error}")
        return Completion(output.text, output.finish_reason, output.usage, output.timings.total_s)

    def describe(self) -> dict[str, Any]:
        return {"kind": "engine", "model": self.name}
