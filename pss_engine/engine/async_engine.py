"""``AsyncEngine``: the engine in a thread of its own, for servers and notebooks."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from pss_engine.engine.engine import Engine
from pss_engine.engine.registry import IDLE_WAIT_S
from pss_engine.engine.request import Request, RequestOutput
from pss_engine.errors import PSSError
from pss_engine.state import SessionState

T = TypeVar("T")


@dataclass(frozen=True)
class TextDelta:
    """New text of a streamed request; ``output`` is set in the last one, and is the whole answer."""

    text: str
    output: RequestOutput | None = None


class AsyncEngine:
    """Runs an :class:`Engine` in one background thread. Every method may be called from any thread or event loop.

    The engine must not be used directly while it is wrapped.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: dict[str, Callable[[RequestOutput], None]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pss-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request) -> RequestOutput:
        """The answer to one request; cancelling the call aborts it. Raises what :meth:`Engine.add` raises."""
        async for delta in self.stream(request):
            if delta.output is not None:
                return delta.output
        raise PSSError("the engine was closed before the request ended")

    async def stream(self, request: Request) -> AsyncIterator[TextDelta]:
        """Text as it is decoded; leaving the loop early aborts the request."""
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[tuple[str, RequestOutput | None]] = asyncio.Queue()

        def send(text: str, output: RequestOutput | None = None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for this text any more
                loop.call_soon_threadsafe(deltas.put_nowait, (text, output))

        def begin() -> str:
            request_id = self._engine.add(request, on_text=send)
            self._waiting[request_id] = lambda output: send(output.text, output)
            return request_id

        request_id = await asyncio.wrap_future(self._call(begin))
        seen, done = 0, False
        try:
            while not done:
                text, output = await deltas.get()
                done = output is not None
                if done or len(text) > seen:
                    yield TextDelta(text[seen:], output)
                seen = len(text)
        finally:
            if not done:
                self._call(lambda: self._abort(request_id))

    async def abort(self, request_id: str) -> None:
        """End a request now; whoever waits for it gets its text so far."""
        await asyncio.wrap_future(self._call(lambda: self._abort(request_id)))

    async def add_state(self, state: SessionState) -> None:
        await asyncio.wrap_future(self._call(lambda: self._engine.add_state(state)))

    async def remove_state(self, session: str) -> None:
        await asyncio.wrap_future(self._call(lambda: self._engine.remove_state(session)))

    async def pin_state(self, session: str) -> None:
        await asyncio.wrap_future(self._call(lambda: self._engine.pin_state(session)))

    def close(self) -> None:
        """Abort what runs and end the thread; whoever waits gets what there is. Idempotent."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
            self._thread.join()

    def _call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function between two steps of the engine, in its thread."""
        future: Future[T] = Future()

        def command() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # belongs to the caller, never to the loop
                future.set_exception(error)

        if self._closed:
            raise PSSError("the engine is closed")
        self._commands.put(command)
        return future

    def _run(self) -> None:
        while self._take_commands():
            outputs = self._engine.step()
            for output in outputs:
                self._deliver(output)
            if not outputs and not self._engine.num_running:
                self._engine.slots.wait(IDLE_WAIT_S)
        for request_id in list(self._waiting):
            self._abort(request_id)

    def _take_commands(self) -> bool:
        """Run what was asked for; waits for it while the engine has nothing to do. False where it is to end."""
        while self._engine.num_unfinished == 0 or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _abort(self, request_id: str) -> None:
        output = self._engine.abort(request_id)
        if output is not None:
            self._deliver(output)

    def _deliver(self, output: RequestOutput) -> None:
        deliver = self._waiting.pop(output.request_id, None)
        if deliver is not None:
            deliver(output)
