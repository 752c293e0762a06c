"""Two calls of the model with a search between them: while one group searches, the others decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pss_engine.engine.engine import Engine
from pss_engine.engine.registry import IDLE_WAIT_S
from pss_engine.engine.request import Request, RequestOutput
from pss_engine.errors import PSSError

Between = Callable[[list[int], list[RequestOutput]], Sequence[Request]]
"""From the places of first requests that ended, and their outputs, to their second requests. Runs in a thread."""


@dataclass
class Staged:
    """What ``run_stages`` did.

    Attributes:
        first, second: outputs in the order of the requests.
        num_overlapped_steps: steps that the engine made while ``between`` ran.
    """

    first: list[RequestOutput]
    second: list[RequestOutput]
    num_overlapped_steps: int = 0


def run_stages(engine: Engine, requests: Sequence[Request], between: Between) -> Staged:
    """Run requests, and for each the one that ``between`` makes of its output.

    Whatever has ended while ``between`` was busy is its next group. Outputs of requests added before are kept for the
    next :meth:`Engine.step`.

    Raises:
        PSSError: a request failed; all others of this call are aborted, as they are for an error of ``between`` or a
            second request that is refused.
    """
    place_of: dict[str, tuple[int, int]] = {}
    outputs: tuple[dict[int, RequestOutput], dict[int, RequestOutput]] = ({}, {})
    others: list[RequestOutput] = []
    ready: list[int] = []
    searched: list[int] = []
    pending: Future[Sequence[Request]] | None = None
    overlapped = 0
    with ThreadPoolExecutor(1, "between") as thread:
        try:
            for index, request in enumerate(requests):
                place_of[engine.add(request)] = (0, index)
            while len(outputs[1]) < len(requests):
                if pending is not None and pending.done():
                    for index, request in zip(searched, pending.result(), strict=True):
                        place_of[engine.add(request)] = (1, index)
                    pending = None
                if pending is None and ready:
                    searched, ready = ready, []
                    pending = thread.submit(between, searched, [outputs[0][index] for index in searched])
                if pending is not None and not engine.num_unfinished:
                    pending.exception()  # waits
                    continue
                overlapped += pending is not None
                ended = engine.step()
                if not ended and not engine.num_running:
                    engine.slots.wait(IDLE_WAIT_S)  # nothing runs before a state is loaded
                for output in ended:
                    if output.request_id not in place_of:
                        others.append(output)
                        continue
                    if output.finish_reason == "error":
                        raise PSSError(f"request {output.request_id} failed: {output.error}")
                    stage, index = place_of[output.request_id]
                    outputs[stage][index] = output
                    if stage == 0:
                        ready.append(index)
        except BaseException:
            for request_id in place_of:
                engine.abort(request_id)
            raise
        finally:
            engine.keep(others)
    order = range(len(requests))
    return Staged([outputs[0][i] for i in order], [outputs[1][i] for i in order], overlapped)
