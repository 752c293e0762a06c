"""The Triton kernels of the paged cache: numbers under the interpreter."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from pss_engine.ops import paged_attention, store_kv
from tests.ops.attention_cases import Case, make_case

triton = pytest.importorskip("triton", reason="triton is not installed")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CACHES = (*DTYPES, torch.float8_e4m3fn)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def assert_right(case: Case, out: torch.Tensor) -> None:
    assert out.dtype == case.q.dtype
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=TOLERANCE[case.q.dtype])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("block_size", [5, 16])
def test_decoding_rows_and_chunks_see_their_own_context(window: int | None, block_size: int) -> None:
    case = make_case((1, 7, 1), (70, 9, 3), window=window, block_size=block_size, num_kv_heads=1, num_heads=3)
    assert_right(case, case.run("triton"))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("num_heads", "head_dim"), [(2, 64), (6, 80), (8, 96), (34, 128), (2, 256)])
def test_any_group_and_head_dim(num_heads: int, head_dim: int) -> None:
    case = make_case((2, 1), (2, 40), num_heads=num_heads, head_dim=head_dim)
    assert_right(case, case.run("triton"))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
def test_rows_and_caches_may_have_different_dtypes(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    case = make_case((1, 3), (30, 3), dtype=dtype, cache_dtype=cache_dtype, head_dim=24)
    assert_right(case, case.run("triton"))


@pytest.mark.usefixtures("interpreted")
def test_queries_may_lie_apart_and_rows_may_be_empty() -> None:
    case = make_case((2, 0, 4, 0), (20, 7, 4, 0))
    wide = torch.full((6, 10, 16), torch.nan)
    wide[:, 2:8] = case.q
    assert_right(case, replace(case, q=wide[:, 2:8]).run("triton"))
    assert make_case((0,), (7,)).run("triton").shape == (0, 6, 16)


@pytest.mark.usefixtures("interpreted")
def test_scores_of_any_size_neither_overflow_nor_vanish() -> None:
    case = make_case((1, 3), (130, 3), sharpness=60.0)
    torch.testing.assert_close(case.run("triton").double(), case.expected(), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("window", [None, 9])
def test_a_token_has_the_same_bits_alone_and_in_any_chunk(window: int | None) -> None:
    case = make_case((1, 8), (66, 70), window=window, num_heads=3, num_kv_heads=1)
    together = case.run("triton")
    assert torch.equal(case.only(0, 0, 1).run("triton"), together[:1])
    assert torch.equal(case.only(1, 0, 3).run("triton"), together[1:4])
    assert torch.equal(case.only(1, 3, 5).run("triton"), together[4:])
    assert torch.equal(case.only(1, 7, 1).run("triton"), together[8:])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("window", [None, 300])
def test_parts_of_a_context_give_the_same_bits_together_and_one_by_one(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pss_engine.kernels import paged_attention as kernels

    case = make_case((1, 5, 0, 1), (600, 517, 300, 3), window=window, num_heads=3, num_kv_heads=1)
    assert kernels.num_parts(7, 3, 1, 16, 600) == 3
    apart = case.run("triton")
    assert_right(case, apart)
    monkeypatch.setattr(kernels, "ENOUGH_PROGRAMS", 0)
    assert torch.equal(case.run("triton"), apart)


def test_contexts_are_cut_where_programs_are_few_and_partial_sums_fit() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from pss_engine.kernels.paged_attention import num_parts

    assert num_parts(1, 28, 4, 128, 32768) == 128
    assert num_parts(1, 28, 4, 128, 100) == 1
    assert num_parts(64, 28, 4, 128, 131072) == 1  # half a gigabyte of partial sums
    assert num_parts(2048, 28, 4, 128, 4096) == 1


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caches_in_float8(dtype: torch.dtype) -> None:
    case = make_case((2, 1), (40, 20), dtype=dtype, cache_dtype=torch.float8_e4m3fn)
    readable = replace(case, k_cache=case.k_cache.float(), v_cache=case.v_cache.float())
    out = case.run("triton")
    torch.testing.assert_close(out.double(), readable.expected(), rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(out, case.run("torch"), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", CACHES, ids=str)
def test_store_kv_writes_its_rows_and_no_others(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    fused = torch.randn((4, 9, 6), generator=torch.Generator().manual_seed(91)).to(dtype)
    caches = [torch.full((5, 4, 2, 6), 7.0, dtype=cache_dtype) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    rows = torch.tensor([3, 0, 19, 7])
    store_kv(fused[:, 3:5], fused[:, 7:], *caches, rows, backend="triton")
    store_kv(fused[:, 3:5], fused[:, 7:], *expected, rows, backend="torch")
    for cache, right in zip(caches, expected, strict=True):
        assert torch.equal(cache.float(), right.float())


@pytest.mark.usefixtures("interpreted")
def test_store_kv_leaves_out_a_row_that_is_outside_the_cache() -> None:
    from pss_engine.kernels.store_kv import store_kv as launch

    new, cache = torch.ones(3, 2, 6), torch.zeros(5, 4, 2, 6)
    launch(new, new, cache, cache.clone(), torch.tensor([-1, 20, 5]))
    assert cache.view(20, -1).sum(1).nonzero().flatten().tolist() == [5]


def on_gpu(case: Case) -> Case:
    moved: dict[str, Any] = {f.name: getattr(case, f.name) for f in fields(case)}
    return Case(**{name: v.cuda() if isinstance(v, torch.Tensor) else v for name, v in moved.items()})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_on_a_gpu_the_preferred_backend_gives_the_same_sums(dtype: torch.dtype, window: int | None) -> None:
    case = make_case((1, 70, 1, 33), (513, 70, 1, 400), head_dim=80, window=window, dtype=dtype, cache_dtype=dtype)
    assert paged_attention.backends("cuda")[0] == "triton"
    assert_right(case, on_gpu(case).run().cpu())
