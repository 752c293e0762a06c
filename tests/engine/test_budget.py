"""A call that would exceed its KV budget is refused with the numbers, or made shorter where it asked for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.engine.budget import within_budget
from pss_engine.errors import RequestRejected
from pss_engine.kv import SESSION, SHARED, KVGeometry
from tests.tiny import tiny_model

GEOMETRY = KVGeometry({SHARED: 1, SESSION: 1}, num_kv_heads=1, head_dim=1, element_bytes=1, block_size=4)
BLOCK_BYTES = 16


def params(max_new_tokens):
    return SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)


@pytest.fixture
def engine():
    return Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**21, block_size=8))


def block_bytes(engine):
    return engine.memory.geometry.held_bytes(1)


def test_a_refusal_names_budget_need_and_what_would_fit(engine):
    limit = 3 * block_bytes(engine)
    message = (
        rf"max_kv_bytes is {limit}; 20 prompt and 40 new tokens need {8 * block_bytes(engine)} bytes of KV"
        rf" \(blocks of 8 tokens, {block_bytes(engine)} bytes\); 5 new tokens would fit, truncate_to_kv_budget"
    )
    with pytest.raises(RequestRejected, match=message):
        engine.add(Request("x" * 20, params(40), max_kv_bytes=limit))
    assert engine.num_unfinished == engine.memory.ledger.num_live_calls == 0


def test_a_call_that_asked_for_it_is_made_shorter_and_says_so(engine):
    limit = 3 * block_bytes(engine)
    asked = [
        Request("x" * 20, params(40), max_kv_bytes=limit, truncate_to_kv_budget=True),
        Request("x" * 20, params(40)),
    ]
    cut, whole = engine.generate(asked)
    assert (cut.usage.max_new_tokens, cut.usage.truncated_tokens, cut.finish_reason) == (5, 35, "length")
    assert cut.token_ids == whole.token_ids[:5]
    assert cut.usage.kv_peak_bytes_allocated == limit
    assert whole.usage.truncated_tokens == 0


def test_a_prompt_is_never_cut(engine):
    request = Request("x" * 20, params(4), max_kv_bytes=2 * block_bytes(engine), truncate_to_kv_budget=True)
    with pytest.raises(RequestRejected, match=r"0 new tokens would fit$"):
        engine.add(request)


def test_a_budget_that_is_kept_changes_nothing(engine):
    output = engine.generate([Request("x" * 20, params(5), max_kv_bytes=3 * block_bytes(engine))])[0]
    assert output.usage.truncated_tokens == 0
    assert len(output.token_ids) == 5


def test_calls_of_a_query_share_its_budget_while_they_live(engine):
    limit = 5 * block_bytes(engine)
    limits = {"query": "q", "max_query_kv_bytes": limit}
    first = Request("x" * 20, params(4), **limits)
    engine.add(first)
    with pytest.raises(RequestRejected, match=f"beside {3 * block_bytes(engine)} of the query's live calls"):
        engine.add(Request("y" * 20, params(4), **limits))
    engine.add(Request("y" * 10, params(4), **limits))
    engine.add(Request("y" * 20, params(4), query="another", max_query_kv_bytes=limit))
    while engine.num_unfinished:
        engine.step()
    engine.generate([Request("y" * 20, params(4), **limits)])


@pytest.mark.parametrize("changes", [{"max_kv_bytes": 0}, {"query": "q", "max_query_kv_bytes": -1}])
def test_a_budget_below_one_is_refused(changes):
    with pytest.raises(RequestRejected, match="must be at least 1"):
        Request("x", **changes)


def test_a_querys_budget_needs_its_query():
    with pytest.raises(RequestRejected, match="set query"):
        Request("x", max_query_kv_bytes=10)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400), st.integers(1, 400), st.integers(0, 200))
def test_what_is_allowed_is_the_most_that_fits(num_prompt, asked, call, query, planned):
    request = Request("x", max_kv_bytes=call, query="q", max_query_kv_bytes=query, truncate_to_kv_budget=True)

    def fits(new):
        held = -(-(num_prompt + new - 1) // 4) * BLOCK_BYTES
        return held <= call and held + planned <= query

    most = max((new for new in range(1, asked + 1) if fits(new)), default=0)
    if most:
        assert within_budget(request, num_prompt, asked, GEOMETRY, planned) == most
    else:
        with pytest.raises(RequestRejected):
            within_budget(request, num_prompt, asked, GEOMETRY, planned)
