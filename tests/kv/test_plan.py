"""How many sessions fit, with and without the cut, by counting blocks one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.kv import KVPlan, ModelKV
from pss_engine.kv.layers import LayerKV

FULL, SLIDING, DELTA = LayerKV("full", 8), LayerKV("sliding", 4, window=10), LayerKV("delta", 0, None, 6, 3)


def plan(layers=(FULL, FULL, FULL, FULL), **changes):
    numbers = {"block_size": 4, "context": 20, "batch": 2, "num_session_layers": 1, "common_tokens": 16}
    return KVPlan(ModelKV(tuple(layers), "float32", "bfloat16"), "float16", **{**numbers, **changes})


def test_common_tokens_below_the_cut_are_held_once():
    found = plan()
    assert found.bytes_per_token == 4 * 8 * 2
    assert found.common_bytes == 3 * 16 * 8 * 2
    each = 20 * 64
    assert found.num_sessions(10 * each, with_cut=False) == 10
    assert found.num_sessions(10 * each, with_cut=True) == (10 * each - 768) // (each - 768) == 23


def test_recurrent_states_are_paid_by_every_session():
    found = plan([FULL, DELTA])
    assert found.model.recurrent_bytes == 6 * 4 + 3 * 2
    assert found.num_sessions(1000, with_cut=False) == 1000 // (20 * 16 + 30)


def test_a_memory_that_does_not_hold_one_holds_none():
    assert plan().num_sessions(100, with_cut=True) == plan().num_sessions(100, with_cut=False) == 0


@given(
    st.lists(st.sampled_from([FULL, SLIDING, DELTA]), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(1, 60),
    st.data(),
    st.integers(0, 50_000),
)
def test_the_count_is_the_largest_that_fits(layers, block_size, context, data, memory):
    common = data.draw(st.integers(0, context))
    found = plan(layers, block_size=block_size, context=context, common_tokens=common)
    cut = max(0, len(layers) - 1)

    def needed(count):
        """Bytes of ``count`` sessions: blocks of the last tokens of each window, the common ones below the cut once."""
        total = count * found.model.recurrent_bytes
        for at, layer in enumerate(layers):
            kept = min(context, layer.window or context)
            last = -(-context // block_size)
            blocks = range(last - -(-kept // block_size), last)
            once = sum(at < cut and (block + 1) * block_size <= common for block in blocks)
            total += (once * (count > 0) + (len(blocks) - once) * count) * block_size * layer.token_elements * 2
        return total

    assert needed(1) == found.allocated_bytes + found.model.recurrent_bytes
    count = found.num_sessions(memory, with_cut=True)
    if needed(2) > needed(1):
        assert needed(count) <= memory < needed(count + 1)


@pytest.mark.parametrize("changes", [{"context": 0}, {"batch": 0}, {"block_size": 0}, {"common_tokens": 21}])
def test_numbers_out_of_range_are_named(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        plan(**changes)


def test_an_unknown_dtype_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"float99.*choices: float32"):
        KVPlan(ModelKV((FULL,), "float32", "bfloat16"), "float99", 16, 1, 1, 1, 0)
