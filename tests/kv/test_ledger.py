"""The ledger's bytes are those of the blocks given out, and a call's usage is what it held."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.kv import GROUPS, SESSION, SHARED, CallUsage, KVGeometry, KVMemory, QueryUsage

GEOMETRY = KVGeometry({SHARED: 3, SESSION: 1}, num_kv_heads=2, head_dim=8, element_bytes=2, block_size=4)


def test_geometry_counts_keys_and_values_of_each_side_of_the_cut():
    assert GEOMETRY.token_bytes(SHARED) == 2 * 3 * 2 * 8 * 2
    assert GEOMETRY.token_bytes(SESSION) == 2 * 1 * 2 * 8 * 2
    assert GEOMETRY.bytes_per_token == 256
    assert GEOMETRY.block_bytes(SHARED) == 4 * GEOMETRY.token_bytes(SHARED)


def test_a_call_pays_for_tokens_and_for_whole_blocks():
    memory = KVMemory(GEOMETRY, 8)
    kv = memory.open("a", prompt_tokens=5, agent="clue", state_bytes=100)
    kv.hold(5)
    kv.stored(5)
    kv.hold(6)
    kv.stored(6)
    usage = kv.close(generated_tokens=2)
    assert (usage.kv_peak_tokens, usage.kv_peak_bytes) == (6, 6 * 256)
    assert usage.kv_peak_bytes_allocated == usage.kv_allocated_bytes == 8 * 256
    assert (usage.prompt_tokens, usage.generated_tokens, usage.agent, usage.state_bytes) == (5, 2, "clue", 100)
    memory.check(live=[])


def test_a_preempted_call_pays_again_for_what_it_computes_again():
    memory = KVMemory(GEOMETRY, 8)
    kv = memory.open("a", prompt_tokens=4)
    kv.hold(4)
    kv.preempt()
    memory.check(live=["a"])
    kv.hold(4)
    usage = kv.close(0)
    assert usage.num_preemptions == 1
    assert usage.kv_allocated_bytes == 2 * usage.kv_peak_bytes_allocated


@given(
    st.lists(st.tuples(st.sampled_from(["open", "hold", "preempt", "close"]), st.integers(0, 4), st.integers(0, 30)))
)
@settings(deadline=None)
def test_charges_equal_the_blocks_in_use_after_every_step(steps):
    memory = KVMemory(GEOMETRY, 10)
    live = {}
    for action, index, num_tokens in steps:
        name = f"call-{index}"
        if action == "open" and name not in live:
            live[name] = memory.open(name, num_tokens)
        elif name in live and action == "hold" and live[name].can_hold(num_tokens):
            live[name].hold(num_tokens)
        elif name in live and action == "preempt":
            live[name].preempt()
        elif name in live and action == "close":
            live.pop(name).close(0)
        memory.check(live)
        assert memory.bytes_in_use == sum(
            GEOMETRY.block_bytes(group) * len(kv.tables[group].blocks) for kv in live.values() for group in GROUPS
        )
    for kv in live.values():
        kv.close(0)
    assert memory.bytes_in_use == 0


def test_check_finds_a_block_that_nobody_is_charged_for():
    memory = KVMemory(GEOMETRY, 4)
    memory.pools[SESSION].allocate(1)
    with pytest.raises(ValueError, match=r"session blocks \[0\] are charged to \[0\] calls, \[1\] hold them"):
        memory.check(live=[])


def test_check_finds_a_call_that_the_engine_does_not_know():
    memory = KVMemory(GEOMETRY, 4)
    memory.open("ghost", 1)
    with pytest.raises(ValueError, match="ghost"):
        memory.check(live=[])


def test_a_query_peaks_at_its_largest_call_and_names_it():
    small, large = CallUsage("1", "clue", kv_peak_bytes=10), CallUsage("2", "answer", kv_peak_bytes=30)
    usage = QueryUsage([small, large])
    assert usage.kv_peak_bytes == 30
    assert usage.kv_cumulative_bytes == 40
    assert usage.to_dict()["kv_peak_call"] == {"call_id": "2", "agent": "answer"}
    assert QueryUsage().to_dict()["kv_peak_call"] is None
