"""The charging rule: of a block with n holders an n-th, the rest of the division to the longest; exact at all times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.kv import GROUPS, SESSION, SHARED, KVGeometry, KVMemory

# 108 and 36 bytes: thirds and quarters, and rests of fifths and sevenths
GEOMETRY = KVGeometry(
    {SHARED: 3, SESSION: 1}, num_kv_heads=1, head_dim=3, element_bytes=2, block_size=3, hidden_bytes=10
)
SHARED_BYTES, SESSION_BYTES = 108, 36


def hold(memory, name, tokens, state="", **owner):
    kv = memory.open(name, len(tokens), state_digest=state, **owner)
    found = kv.adopt(kv.find_prefix(tokens))
    kv.hold(len(tokens))
    kv.stored(len(tokens))
    kv.publish(tokens, len(tokens))
    return kv, found


def test_the_geometry_of_this_file():
    assert (GEOMETRY.block_bytes(SHARED), GEOMETRY.block_bytes(SESSION)) == (SHARED_BYTES, SESSION_BYTES)


def test_five_holders_and_the_longest_pays_the_rest():
    memory = KVMemory(GEOMETRY, 40)
    calls = {name: hold(memory, name, range(3), state=name)[0] for name in "abcde"}
    charges = memory.ledger.charges("call_id")
    assert charges == {"a": 21 + 3 + SESSION_BYTES, **dict.fromkeys("bcde", 21 + SESSION_BYTES)}
    assert memory.ledger.charges("group") == {SHARED: SHARED_BYTES, SESSION: 5 * SESSION_BYTES}
    calls.pop("a").close(0)
    assert memory.ledger.charges("call_id")["b"] == SHARED_BYTES // 4 + SESSION_BYTES
    memory.check(calls)


@pytest.mark.parametrize("leaver", "abe")
def test_whoever_leaves_is_charged_nothing_and_the_others_for_all_of_it(leaver):
    memory = KVMemory(GEOMETRY, 40)
    calls = {name: hold(memory, name, range(3), state=name)[0] for name in "abcde"}
    calls[leaver].preempt()
    memory.check(calls)
    assert memory.ledger.charges("call_id")[leaver] == 0
    assert memory.ledger.charges("group") == {SHARED: SHARED_BYTES, SESSION: 4 * SESSION_BYTES}


def test_who_is_left_pays_for_all_of_it():
    memory = KVMemory(GEOMETRY, 40)
    first, _ = hold(memory, "a", range(3), state="s")
    second, _ = hold(memory, "b", range(3), state="t")
    usage = first.close(0)
    assert usage.kv_end_bytes_shared_fraction == SHARED_BYTES // 2 + SESSION_BYTES
    assert usage.kv_end_bytes_exclusive == SESSION_BYTES
    assert usage.kv_peak_bytes_exclusive == SHARED_BYTES + SESSION_BYTES
    assert memory.ledger.charged_bytes == memory.bytes_in_use == SHARED_BYTES + SESSION_BYTES
    assert memory.bytes_cached == SESSION_BYTES
    usage = second.close(0)
    assert usage.kv_peak_bytes_shared_fraction == SHARED_BYTES + SESSION_BYTES
    assert usage.kv_allocated_bytes == SESSION_BYTES
    assert memory.bytes_occupied == memory.bytes_cached == SHARED_BYTES + 2 * SESSION_BYTES


def test_byte_seconds_of_all_calls_are_those_of_the_blocks():
    now = 0
    memory = KVMemory(GEOMETRY, 40, clock_ns=lambda: now)
    first, _ = hold(memory, "a", range(6))
    now = 2 * 10**9
    second, _ = hold(memory, "b", range(6))
    now = 5 * 10**9
    usages = [first.close(0), second.close(0)]
    two, three = 2 * (SHARED_BYTES + SESSION_BYTES), 2 * SHARED_BYTES + 3 * SESSION_BYTES
    assert sum(usage.kv_byte_seconds for usage in usages) == two * 2 + three * 3


def test_a_query_holds_a_block_once_that_only_its_calls_share():
    memory = KVMemory(GEOMETRY, 40)
    first, _ = hold(memory, "a", range(6), query="q", agent="planner", session="s")
    second, _ = hold(memory, "b", range(6), query="q", agent="critic", session="s")
    assert memory.ledger.charges("query") == {"q": 2 * SHARED_BYTES + 3 * SESSION_BYTES}
    assert memory.ledger.charges("agent").keys() == {"planner", "critic"}
    usages = [first.close(0), second.close(0)]
    assert [usage.kv_query_peak_bytes for usage in usages] == [2 * 6 * 48] * 2
    assert usages[1].kv_query_peak_bytes_shared_fraction == 2 * SHARED_BYTES + 3 * SESSION_BYTES
    assert memory.ledger.planned("q") == 0


def test_rounding_is_what_no_token_fills():
    memory = KVMemory(GEOMETRY, 40)
    kv, _ = hold(memory, "a", range(7))
    usage = kv.close(0)
    assert usage.kv_rounding_bytes == 2 * 48 == usage.kv_end_bytes_allocated - usage.kv_end_bytes
    assert usage.cut_hidden_peak_bytes == 3 * 3 * 5 * 2
    assert (usage.groups[SHARED].peak_blocks, usage.groups[SESSION].end_blocks) == (3, 3)


def test_tokens_of_a_rejected_draft_give_their_blocks_back():
    memory = KVMemory(GEOMETRY, 40)
    kv, _ = hold(memory, "a", range(3))
    kv.hold(12)
    assert memory.bytes_in_use == 4 * (SHARED_BYTES + SESSION_BYTES)
    kv.stored(4)
    assert memory.bytes_in_use == 2 * (SHARED_BYTES + SESSION_BYTES)
    memory.check(["a"])
    usage = kv.close(0)
    assert usage.kv_peak_bytes_allocated == 4 * (SHARED_BYTES + SESSION_BYTES)
    assert usage.kv_peak_bytes == 4 * 48


actions = st.sampled_from(["open", "hold", "reject", "preempt", "close", "forget"])
steps = st.lists(st.tuples(actions, st.integers(0, 5), st.integers(1, 20)), max_size=60)


@given(steps)
@settings(deadline=None, max_examples=200)
def test_charges_and_cached_blocks_are_the_bytes_occupied_after_any_step(steps):
    memory = KVMemory(GEOMETRY, 12)
    live = {}
    for action, index, num_tokens in steps:
        name = f"call-{index}"
        if action == "open" and name not in live:
            kv = memory.open(name, num_tokens, state_digest=f"s{index % 2}", query=f"q{index % 3}")
            prefix = kv.find_prefix(range(num_tokens))
            if kv.can_adopt(prefix, num_tokens):
                kv.adopt(prefix)
                kv.hold(num_tokens)
                kv.stored(num_tokens)
                kv.publish(range(num_tokens), num_tokens)
            live[name] = (kv, num_tokens)
        elif action == "forget":
            memory.forget_prefixes()
        elif name in live:
            kv, stored = live[name]
            if action == "hold" and kv.can_hold(stored + num_tokens):
                kv.hold(stored + num_tokens)
                kv.stored(stored + num_tokens)
                live[name] = (kv, stored + num_tokens)
            elif action == "reject" and kv.can_hold(stored + num_tokens):
                kv.hold(stored + num_tokens)
                kv.stored(stored)
            elif action == "preempt":
                kv.preempt()
                live[name] = (kv, 0)
            elif action == "close":
                live.pop(name)[0].close(0)
        memory.check(live)
        charged = memory.ledger.charged_bytes
        assert charged == memory.bytes_in_use
        assert charged + memory.bytes_cached == memory.bytes_occupied
        for owner in ("call_id", "query", "session", "agent", "group"):
            assert sum(memory.ledger.charges(owner).values()) == charged
        assert all(value >= 0 for value in memory.ledger.charges("call_id").values())
    for kv, _ in live.values():
        kv.close(0)
    assert memory.ledger.charged_bytes == memory.bytes_in_use == 0
    assert memory.ledger.num_live_calls == 0


@pytest.mark.parametrize("group", GROUPS)
def test_the_check_finds_a_charge_that_is_wrong(group):
    memory = KVMemory(GEOMETRY, 12)
    hold(memory, "a", range(6))
    memory.ledger._live["a"].charged[GROUPS.index(group)] += 1
    with pytest.raises(ValueError, match="call 'a' is charged"):
        memory.check(["a"])
