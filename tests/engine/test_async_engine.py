"""The engine behind an event loop: the same tokens, streamed, cancelled and refused one by one."""

from __future__ import annotations

import asyncio

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import AsyncEngine, Engine, Request, SamplingParams
from pss_engine.errors import PSSError, RequestRejected, SessionNotFound
from tests.engine.adapters import random_state
from tests.tiny import tiny_model

PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True)


def plain_engine():
    return Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**22))


@pytest.fixture
def engine():
    inner = plain_engine()
    engine = AsyncEngine(inner)
    yield engine
    engine.close()
    inner.check()
    assert inner.num_unfinished == inner.memory.bytes_in_use == 0


async def collect(engine, request):
    deltas = [delta async for delta in engine.stream(request)]
    return "".join(delta.text for delta in deltas), deltas[-1].output


def test_streams_at_once_give_what_the_plain_engine_gives(engine):
    requests = [Request(text, PARAMS) for text in ("abc", "a longer prompt", "x")]

    async def run():
        return await asyncio.gather(*(collect(engine, request) for request in requests))

    expected = plain_engine().generate(requests)
    for (text, output), wanted in zip(asyncio.run(run()), expected, strict=True):
        assert text == output.text == wanted.text
        assert output.token_ids == wanted.token_ids


def test_a_stop_string_is_never_streamed_in_part(engine):
    free = plain_engine().generate([Request("abc", PARAMS)])[0].text
    stop = free[5:8]
    text, output = asyncio.run(
        collect(engine, Request("abc", SamplingParams(max_new_tokens=12, ignore_eos=True, stop=(stop,))))
    )
    assert text == output.text == free[: free.index(stop)]


def test_leaving_a_stream_aborts_its_request(engine):
    async def run():
        async for _ in engine.stream(Request("abc", SamplingParams(max_new_tokens=400, ignore_eos=True))):
            break
        return await engine.generate(Request("x", PARAMS))

    assert asyncio.run(run()).finish_reason == "length"


def test_cancelling_a_call_aborts_its_request(engine):
    async def run():
        task = asyncio.create_task(engine.generate(Request("abc", SamplingParams(max_new_tokens=400, ignore_eos=True))))
        await engine.generate(Request("x", PARAMS))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_refusal_reaches_its_caller_alone(engine):
    async def run():
        good = asyncio.create_task(engine.generate(Request("abc", PARAMS)))
        with pytest.raises(RequestRejected):
            await engine.generate(Request(""))
        with pytest.raises(SessionNotFound):
            await engine.generate(Request("abc", session="ghost"))
        return await good

    assert asyncio.run(run()).finish_reason == "length"


def test_states_come_and_go_between_steps(engine):
    state = random_state(tiny_model(), "s", seed=1)

    async def run():
        await engine.add_state(state)
        await engine.pin_state("s")
        output = await engine.generate(Request("abc", PARAMS, session="s"))
        await engine.remove_state("s")
        with pytest.raises(SessionNotFound):
            await engine.generate(Request("abc", PARAMS, session="s"))
        return output

    assert asyncio.run(run()).state_digest == state.digest


def test_a_closed_engine_says_so(engine):
    engine.close()
    with pytest.raises(PSSError, match="closed"):
        asyncio.run(engine.generate(Request("abc", PARAMS)))


def test_closing_ends_what_runs_with_its_text_so_far():
    engine = AsyncEngine(plain_engine())

    async def run():
        stream = engine.stream(Request("abc", SamplingParams(max_new_tokens=400, ignore_eos=True)))
        first = await anext(stream)
        await asyncio.to_thread(engine.close)
        last = [delta async for delta in stream][-1]
        return first, last

    first, last = asyncio.run(run())
    assert last.output.finish_reason == "abort"
    assert last.output.text.startswith(first.text)
