"""Two stages with a search between them: the same outputs as one after the other, and nothing left behind."""

from __future__ import annotations

import threading

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, RequestOutput, SamplingParams, run_stages
from pss_engine.errors import PSSError, RequestRejected
from tests.tiny import tiny_model


@pytest.fixture
def engine():
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**23, num_state_slots=1))
    yield engine
    engine.check()
    assert engine.num_unfinished == 0 and engine.memory.bytes_in_use == 0


def first(index: int) -> Request:
    return Request(f"question {index}", SamplingParams(max_new_tokens=2 + 3 * index, ignore_eos=True))


def second(output: RequestOutput) -> Request:
    return Request([*output.token_ids, 5], SamplingParams(max_new_tokens=3, ignore_eos=True))


def test_outputs_are_those_of_one_stage_after_the_other(engine: Engine) -> None:
    groups: list[list[int]] = []

    def between(places: list[int], outputs: list[RequestOutput]) -> list[Request]:
        groups.append(places)
        return [second(output) for output in outputs]

    requests = [first(index) for index in range(5)]
    ran = run_stages(engine, requests, between)
    alone = engine.generate(requests)
    assert [output.token_ids for output in ran.first] == [output.token_ids for output in alone]
    expected = engine.generate([second(output) for output in alone])
    assert [output.token_ids for output in ran.second] == [output.token_ids for output in expected]
    assert sorted(place for group in groups for place in group) == [0, 1, 2, 3, 4] and len(groups) > 1


def test_others_decode_while_one_group_searches(engine: Engine) -> None:
    decoded = threading.Event()
    steps = engine.counters

    def between(places: list[int], outputs: list[RequestOutput]) -> list[Request]:
        if 0 in places:  # the short one: the long one is still decoding, and goes on while this waits
            before = steps.num_steps
            while steps.num_steps < before + 3:
                decoded.wait(0.001)
        return [second(output) for output in outputs]

    requests = [first(0), Request("long", SamplingParams(max_new_tokens=40, ignore_eos=True))]
    assert run_stages(engine, requests, between).num_overlapped_steps >= 3


def test_an_error_between_ends_all_requests(engine: Engine) -> None:
    def between(places: list[int], outputs: list[RequestOutput]) -> list[Request]:
        raise PSSError("the index is gone")

    with pytest.raises(PSSError, match="the index is gone"):
        run_stages(engine, [first(0), first(6)], between)


def test_a_second_request_that_is_refused_ends_all_requests(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match="the context holds"):
        run_stages(engine, [first(0), first(6)], lambda places, outputs: [Request([5] * 600) for _ in places])


def test_outputs_of_others_are_kept_for_them(engine: Engine) -> None:
    mine = engine.add(Request("mine", SamplingParams(max_new_tokens=1)))
    run_stages(engine, [first(1)], lambda places, outputs: [second(output) for output in outputs])
    assert [output.request_id for output in engine.step()] == [mine]


def test_no_requests_are_no_work(engine: Engine) -> None:
    assert run_stages(engine, [], lambda places, outputs: []).second == []
