"""Blocks are owned once, shared by count, and all come back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.errors import CapacityError
from pss_engine.kv import BlockPool, BlockTable

steps = st.lists(st.tuples(st.sampled_from(["grow", "release"]), st.integers(0, 3), st.integers(0, 40)), max_size=60)


@given(steps)
@settings(deadline=None)
def test_any_growth_and_release_keeps_the_books(steps):
    pool = BlockPool("test", 12)
    tables = [BlockTable(pool, 4) for _ in range(4)]
    for action, index, num_tokens in steps:
        table = tables[index]
        if action == "release":
            table.release()
        elif table.missing(num_tokens) <= pool.num_free:
            table.grow(num_tokens)
            assert len(table.blocks) * 4 >= num_tokens
        else:
            before = list(table.blocks)
            with pytest.raises(CapacityError):
                table.grow(num_tokens)
            assert table.blocks == before
        pool.check()
        held = [block for t in tables for block in t.blocks]
        assert len(held) == len(set(held)) == pool.num_used
    for table in tables:
        table.release()
    assert pool.num_free == 12


def test_a_full_pool_says_what_was_needed():
    pool = BlockPool("shared", 2)
    pool.allocate(1)
    with pytest.raises(CapacityError, match=r"kv blocks \(shared\): 2 blocks needed, 1 blocks free") as caught:
        pool.allocate(2)
    assert (caught.value.needed, caught.value.free) == (2, 1)


def test_a_block_that_nobody_holds_cannot_be_released():
    pool = BlockPool("shared", 2)
    (block,) = pool.allocate(1)
    pool.release([block])
    with pytest.raises(ValueError, match="nobody holds"):
        pool.release([block])


def test_check_finds_a_block_that_is_free_and_in_use():
    pool = BlockPool("shared", 3)
    pool.allocate(2)
    pool._free.append(0)
    pool._free.append(1)
    with pytest.raises(ValueError, match="both free and in use"):
        pool.check()
