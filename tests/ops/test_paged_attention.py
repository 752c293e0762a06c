"""paged_attention: what the formula says, and every token alone with its context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import paged_attention
from tests.ops.attention_cases import Case, make_case
from tests.ops.isas import each_isa, needs_cpp, running, with_threads

BACKENDS = paged_attention.backends("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
# prefill whole and in parts, decoding, several tokens at once; contexts around the edges of blocks and of key tiles
QUERY_LENS = (1, 5, 1, 33, 2, 70, 3)
CONTEXT_LENS = (1, 5, 64, 65, 130, 100, 17)


def assert_right(case: Case, out: torch.Tensor) -> None:
    assert out.dtype == case.q.dtype
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=TOLERANCE[case.q.dtype])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 1, 3, 16, 64, 100])
@pytest.mark.parametrize("block_size", [1, 4, 16, 100])
def test_rows_of_all_kinds_see_their_own_context(backend: str, window: int | None, block_size: int) -> None:
    case = make_case(QUERY_LENS, CONTEXT_LENS, window=window, block_size=block_size)
    assert_right(case, case.run(backend))


@needs_cpp
@each_isa
@pytest.mark.parametrize("head_dim", [1, 7, 8, 16, 64, 72, 80, 96, 128, 256])
def test_any_head_dim_on_every_instruction_set(isa: str, head_dim: int) -> None:
    case = make_case((1, 9, 3), (70, 9, 66), head_dim=head_dim)
    with running(isa):
        assert_right(case, case.run("cpp"))


@needs_cpp
@each_isa
@pytest.mark.parametrize("group", [*range(1, 10), 16, 70])
def test_any_number_of_query_heads_to_a_key_head(isa: str, group: int) -> None:
    case = make_case((1, 9, 3), (70, 9, 66), num_heads=2 * group, num_kv_heads=2)
    with running(isa):
        assert_right(case, case.run("cpp"))


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
def test_rows_and_caches_may_have_different_dtypes(isa: str, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    case = make_case((1, 9), (70, 9), dtype=dtype, cache_dtype=cache_dtype, head_dim=24)
    with running(isa):
        assert_right(case, case.run("cpp"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_any_size_neither_overflow_nor_vanish(backend: str) -> None:
    case = make_case((1, 9), (300, 9), sharpness=60.0)
    assert case.expected().isfinite().all()
    torch.testing.assert_close(case.run(backend).double(), case.expected(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_may_lie_apart_and_rows_may_be_empty(backend: str) -> None:
    case = make_case((2, 0, 4), (20, 7, 4))
    wide = torch.full((6, 10, 16), torch.nan)
    wide[:, 2:8] = case.q
    assert_right(case, replace(case, q=wide[:, 2:8]).run(backend))
    nothing = make_case((0,), (7,))
    assert nothing.run(backend).shape == (0, 6, 16)


@needs_cpp
@each_isa
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("num_heads, head_dim", [(2, 64), (6, 24), (32, 16)])
def test_how_a_context_is_cut_into_calls_changes_no_bit(
    isa: str, window: int | None, num_heads: int, head_dim: int
) -> None:
    case = make_case(QUERY_LENS, CONTEXT_LENS, num_heads=num_heads, head_dim=head_dim, window=window)
    with running(isa):
        together = case.run("cpp")
        for row, count in enumerate(QUERY_LENS):
            whole = together[case.query_starts[row] : case.query_starts[row + 1]]
            assert torch.equal(case.only(row, 0, count).run("cpp"), whole)
            for size in (1, 2, 7, 16, 40):
                for first in range(0, count, size):
                    some = min(size, count - first)
                    assert torch.equal(case.only(row, first, some).run("cpp"), whole[first : first + some])


@needs_cpp
@each_isa
def test_where_the_blocks_lie_and_how_large_they_are_changes_no_bit(isa: str) -> None:
    with running(isa):
        one, *others = (
            repacked(make_case((70, 1), (100, 130)), block_size).run("cpp") for block_size in (16, 1, 5, 64, 128)
        )
    assert all(torch.equal(one, other) for other in others)


def repacked(case: Case, block_size: int) -> Case:
    """The same context in blocks of another size."""
    counts = [-(-context // block_size) for context in case.context_lens.tolist()]
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    caches = [c.new_zeros(sum(counts), block_size, *c.shape[2:]) for c in case.caches]
    for b, count in enumerate(counts):
        tables[b, :count] = torch.arange(count) + sum(counts[:b])
        for cache, before in zip(caches, case.caches, strict=True):
            keys = case.keys_of(before, b)
            cache[sum(counts[:b]) : sum(counts[: b + 1])].flatten(0, 1)[: len(keys)] = keys
    return replace(case, k_cache=caches[0], v_cache=caches[1], block_tables=tables)


@needs_cpp
def test_the_number_of_threads_changes_no_bit() -> None:
    case = make_case((70, 1, 1, 200), (100, 900, 3, 200), head_dim=64)
    one, *others = (with_threads(count, lambda: case.run("cpp")) for count in (1, 2, 3, 8))
    assert all(torch.equal(one, other) for other in others)


def _with(change: Callable[[Case], dict[str, object]]) -> Case:
    case = make_case((1, 9), (70, 9))
    return replace(case, **change(case))  # type: ignore[arg-type]


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


MISUSE: dict[str, tuple[Callable[[Case], dict[str, object]], str]] = {
    "another head dim": (lambda c: {"q": torch.zeros(10, 6, 8)}, r"shapes do not fit: q \[10, 6, 8\]"),
    "heads that share unevenly": (lambda c: {"q": torch.zeros(10, 5, 16)}, "shapes do not fit"),
    "a start too few": (lambda c: {"query_starts": _ints(0, 10)}, r"shapes do not fit.*query_starts \[2\]"),
    "tables of int64": (lambda c: {"block_tables": c.block_tables.long()}, "dtypes do not fit.*torch.int64"),
    "caches of two kinds": (lambda c: {"v_cache": c.v_cache.half()}, "dtypes do not fit"),
    "heads apart": (lambda c: {"q": torch.zeros(10, 16, 6).transpose(1, 2)}, "strides do not fit"),
    "two devices": (lambda c: {"k_cache": c.k_cache.to("meta")}, "devices do not fit.*k_cache meta"),
    "no window": (lambda c: {"window": 0}, "window 0 must be at least 1"),
    "training": (lambda c: {"q": c.q.clone().requires_grad_()}, "no gradient flows"),
    "starts that do not start": (lambda c: {"query_starts": _ints(1, 1, 10)}, r"query_starts\[0\] = 1, must be 0"),
    "starts that turn back": (
        lambda c: {"query_starts": _ints(0, 11, 10)},
        r"query_starts\[2\] = 10, must be at least",
    ),
    "tokens without a row": (lambda c: {"query_starts": _ints(0, 1, 9)}, r"query_starts\[2\] = 9, must be 10"),
    "less context than tokens": (lambda c: {"context_lens": _ints(70, 8)}, r"context_lens\[1\] = 8, must be 9"),
    "more context than blocks": (lambda c: {"context_lens": _ints(113, 9)}, r"context_lens\[0\] = 113.* to 112"),
    "a block that is not there": (
        lambda c: {"block_tables": torch.full_like(c.block_tables, 9)},
        r"block_tables\[0\]\[0\] = 9, must be 0 to 8",
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("misuse", MISUSE)
def test_arguments_outside_the_contract_are_refused(backend: str, misuse: str) -> None:
    change, message = MISUSE[misuse]
    with pytest.raises(ConfigError, match=message):
        _with(change).run(backend)
