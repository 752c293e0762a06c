"""Cached prefixes: shared below the cut by tokens alone, above it by state and tokens, and never beyond their scope."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.kv import SESSION, SHARED, BlockPool, KVGeometry, KVMemory

GEOMETRY = KVGeometry({SHARED: 3, SESSION: 1}, num_kv_heads=2, head_dim=8, element_bytes=2, block_size=4)


def run(memory, call_id, tokens, state="", scope=""):
    """A call that begins with what is cached, stores its tokens, and ends; (session, shared) tokens found."""
    kv = memory.open(call_id, len(tokens), state_digest=state, scope=scope)
    found = kv.adopt(kv.find_prefix(tokens))
    kv.hold(len(tokens))
    kv.publish(tokens, len(tokens))
    memory.check([call_id])
    kv.close(0)
    return found


def test_the_same_state_finds_everything_but_the_last_token():
    memory = KVMemory(GEOMETRY, 16)
    assert run(memory, "a", range(12), state="s") == (0, 0)
    assert run(memory, "b", range(12), state="s") == (8, 12)
    assert run(memory, "c", range(14), state="s") == (12, 12)


def test_another_state_and_the_base_model_find_the_shared_layers_only():
    memory = KVMemory(GEOMETRY, 16)
    run(memory, "a", range(12), state="s")
    assert run(memory, "b", range(12), state="t") == (0, 12)
    assert run(memory, "c", range(12)) == (0, 12)


def test_another_scope_finds_nothing():
    memory = KVMemory(GEOMETRY, 16)
    run(memory, "a", range(12), scope="tenant-a")
    assert run(memory, "b", range(12), scope="tenant-b") == (0, 0)
    assert run(memory, "c", range(12), scope="tenant-a") == (8, 12)


def test_a_prefix_ends_at_the_first_other_token():
    memory = KVMemory(GEOMETRY, 16)
    run(memory, "a", range(12))
    assert run(memory, "b", [0, 1, 2, 3, 4, 99, 6, 7, 8]) == (4, 4)


def test_turned_off_nothing_is_found():
    memory = KVMemory(GEOMETRY, 16, prefix_caching=False)
    run(memory, "a", range(12))
    assert run(memory, "b", range(12)) == (0, 0)


def test_a_scope_that_looks_like_a_digest_is_still_a_scope():
    memory = KVMemory(GEOMETRY, 16)
    run(memory, "a", range(12), state="x", scope="")
    assert run(memory, "b", range(12), state="", scope="x") == (0, 0)


def test_two_live_calls_hold_one_copy_and_both_pay_for_it():
    memory = KVMemory(GEOMETRY, 16)
    run(memory, "a", range(12), state="s")
    first, second = (memory.open(name, 12, state_digest="s") for name in ("b", "c"))
    for kv in (first, second):
        kv.adopt(kv.find_prefix(range(12)))
    assert memory.bytes_in_use == 3 * GEOMETRY.block_bytes(SHARED) + 2 * GEOMETRY.block_bytes(SESSION)
    memory.check(["b", "c"])
    usage = first.close(0)
    assert usage.kv_reused_blocks == 5
    assert usage.kv_allocated_bytes == 0
    assert (usage.cached_tokens, usage.cached_shared_tokens) == (8, 12)
    second.close(0)
    memory.check([])


def test_the_end_of_the_oldest_prefix_is_given_up_first():
    memory = KVMemory(GEOMETRY, 4)
    run(memory, "a", range(12))
    run(memory, "b", [50, 51, 52, 53, 54, 55, 56, 57])
    assert run(memory, "c", range(12)) == (8, 8)


steps = st.lists(
    st.tuples(st.sampled_from(["open", "store", "close"]), st.integers(0, 3), st.lists(st.integers(0, 1), max_size=14)),
    max_size=40,
)


@given(steps)
@settings(deadline=None)
def test_any_interleaving_keeps_the_books_and_finds_only_what_was_stored(steps):
    memory = KVMemory(GEOMETRY, 9)
    live, content = {}, {}
    for action, index, tokens in steps:
        name, state = f"call-{index}", f"state-{index % 2}"
        if action == "open" and name not in live and tokens:
            kv = memory.open(name, len(tokens), state_digest=state)
            kv.adopt(kv.find_prefix(tokens))
            for group in (SHARED, SESSION):
                for i, block in enumerate(kv.tables[group].blocks):
                    owner = "" if group == SHARED else state
                    assert content[group, block] == (owner, tokens[: (i + 1) * 4])
            live[name] = (kv, tokens, state)
        elif action == "store" and name in live:
            kv, tokens, state = live[name]
            if kv.can_hold(len(tokens)):
                kv.hold(len(tokens))
                for group in (SHARED, SESSION):
                    for i, block in enumerate(kv.tables[group].blocks):
                        content[group, block] = ("" if group == SHARED else state, tokens[: (i + 1) * 4])
                kv.publish(tokens, len(tokens))
        elif action == "close" and name in live:
            live.pop(name)[0].close(0)
        memory.check(live)
    for kv, _, _ in live.values():
        kv.close(0)
    assert memory.bytes_in_use == 0


def test_forgetting_frees_every_cached_block():
    memory = KVMemory(GEOMETRY, 16)
    run(memory, "a", range(12))
    assert memory.bytes_cached > 0
    assert memory.forget_prefixes() == 6
    assert memory.bytes_cached == 0
    assert run(memory, "b", range(12)) == (0, 0)


def test_the_first_block_published_under_a_key_stays_the_one():
    pool = BlockPool("p", 2)
    first, second = pool.allocate(2)
    pool.publish(first, b"k")
    pool.publish(second, b"k")
    assert pool.find(b"k") == first
    pool.release([first, second])
    pool.check()
    assert (pool.num_cached, pool.num_free) == (1, 2)
