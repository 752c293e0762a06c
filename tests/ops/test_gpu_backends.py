"""On a GPU: every backend of every op against the reference on the CPU, and the same bits in every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pss_engine.ops import (
    LoraSlice,
    add_rms_norm,
    apply_rope,
    argmax,
    lora_bgmv,
    lora_slices,
    paged_attention,
    retrieve_topk,
    rms_norm,
    rope_store_kv,
    sample_tokens,
    silu_mul,
    store_kv,
)
from tests.ops.attention_cases import Case, make_case
from tests.ops.lora_cases import POPULARITIES
from tests.ops.lora_cases import make_case as make_lora_case
from tests.ops.retrieval_cases import VECTORS, assert_same, dense_search, on, search, sparse_search

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
NUM_RUNS = 64
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def each_backend(*names: str) -> Any:
    return pytest.mark.parametrize("backend", names)


def runs(op: Any, backend: str) -> None:
    if reason := op.why("cuda")[backend]:
        pytest.skip(f"{op.name} on {backend}: {reason}")


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype] * max(1.0, expected.float().abs().max().item())
    torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=0, atol=tolerance)


def same_in_every_run(call: Callable[[], Tensor]) -> None:
    first = call()
    assert all(torch.equal(call(), first) for _ in range(NUM_RUNS - 1))


def moved(case: Case) -> Case:
    values = {f.name: getattr(case, f.name) for f in fields(case)}
    return Case(**{name: v.cuda() if isinstance(v, Tensor) else v for name, v in values.items()})


@each_backend("triton", "cuda")
@each_dtype
@pytest.mark.parametrize("popularity", POPULARITIES)
@pytest.mark.parametrize("num_rows", [1, 133])
def test_lora_bgmv(backend: str, dtype: torch.dtype, popularity: str, num_rows: int) -> None:
    runs(lora_bgmv, backend)
    case = make_lora_case(num_rows, in_features=1100, out_features=300, popularity=popularity, dtype=dtype)
    case = replace(case, lora_a=case.lora_a.bfloat16(), lora_b=case.lora_b.bfloat16())
    y, *rest = (tensor.cuda() for tensor in case.args())

    def call() -> Tensor:
        out = y.clone()
        lora_bgmv(out, *rest, backend=backend)
        return out

    close(call(), case.expected().to(dtype))
    same_in_every_run(call)


@each_backend("triton", "cuda")
def test_slices_of_a_fused_projection(backend: str) -> None:
    runs(lora_slices, backend)
    cases = [make_lora_case(7, out_features=n, dtype=torch.bfloat16, lora_dtype=torch.bfloat16) for n in (96, 40, 40)]
    expected = torch.cat([replace(case, x=cases[0].x, slot_ids=cases[0].slot_ids).expected() for case in cases], 1)
    places = (0, 96, 136)
    parts = [LoraSlice(*(t.cuda() for t in case.args()[2:6]), at) for case, at in zip(cases, places, strict=True)]
    y = torch.cat([case.y for case in cases], 1).cuda()
    lora_slices(y, cases[0].x.cuda(), parts, cases[0].slot_ids.cuda(), backend=backend)
    close(y, expected.bfloat16())


@each_backend("triton", "cuda")
@each_dtype
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 64), (3, 1, 80), (6, 2, 96), (16, 1, 128), (4, 2, 256)]
)
@pytest.mark.parametrize("window", [None, 100])
def test_paged_attention(
    backend: str, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None
) -> None:
    runs(paged_attention, backend)
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "window": window}
    case = make_case((1, 70, 1, 5), (1513, 70, 1, 400), dtype=dtype, cache_dtype=dtype, **sizes)
    on_gpu = moved(case)
    close(on_gpu.run(backend), case.expected().to(dtype))
    same_in_every_run(lambda: on_gpu.run(backend))
    close(on_gpu.only(0, 0, 1).run(backend), case.expected()[:1].to(dtype))
    one, all_rows = moved(case.only(1, 69, 1)).run(backend), on_gpu.run(backend)
    assert torch.equal(one[0], all_rows[70])


@each_backend("triton", "cuda")
def test_caches_in_float8(backend: str) -> None:
    runs(paged_attention, backend)
    case = make_case((1, 3), (600, 40), head_dim=128, dtype=torch.bfloat16, cache_dtype=torch.float8_e4m3fn)
    readable = replace(case, k_cache=case.k_cache.float(), v_cache=case.v_cache.float())
    close(moved(case).run(backend), readable.expected().bfloat16())


@each_backend("triton", "cuda")
@pytest.mark.parametrize("cache_dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
def test_store_kv(backend: str, cache_dtype: torch.dtype) -> None:
    runs(store_kv, backend)
    k, v, rows = randn(4, 2, 80), randn(4, 2, 80) * 200, torch.tensor([3, 0, 19, 7])
    caches = [torch.full((5, 4, 2, 80), 7.0).to(cache_dtype) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    store_kv(k, v, *expected, rows, backend="torch")
    on_gpu = [cache.cuda() for cache in caches]
    store_kv(k.cuda(), v.cuda(), *on_gpu, rows.cuda(), backend=backend)
    for found, right in zip(on_gpu, expected, strict=True):
        assert torch.equal(found.cpu().float(), right.float())


@each_backend("triton", "cuda")
@pytest.mark.parametrize("vectors", VECTORS, ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_searches_are_those_of_the_reference_in_every_bit(backend: str, vectors: torch.dtype, tied: bool) -> None:
    runs(retrieve_topk, backend)
    dense, sparse = dense_search(9, 700, 131, vectors, tied=tied), sparse_search(6, 700, tied=tied)
    arguments = search(dense, sparse, 700, num_groups=5, depth=300, k=20, masked=True)
    found = retrieve_topk(*on("cuda", arguments), backend=backend)
    assert_same(found, retrieve_topk(*arguments, backend="torch"))


@each_dtype
def test_the_small_ops_of_a_layer(dtype: torch.dtype) -> None:
    runs(rms_norm, "triton")
    x, residual, weight = randn(9, 3584).to(dtype), randn(9, 3584).to(dtype), (randn(3584) + 2).to(dtype)
    heads, turned = randn(9, 12, 128).to(dtype), randn(9, 64)
    cos, sin, rows = turned.cos(), turned.sin(), torch.arange(9)
    caches = [torch.zeros(2, 8, 2, 128, dtype=dtype) for _ in range(4)]
    close(rms_norm(x.cuda(), weight.cuda(), 1e-6, backend="triton"), rms_norm(x, weight, 1e-6))
    y, total = add_rms_norm(x.cuda(), residual.cuda(), weight.cuda(), 1e-6, backend="triton")
    close(y, add_rms_norm(x, residual, weight, 1e-6)[0])
    assert torch.equal(total.cpu(), x + residual)
    close(silu_mul(x.cuda(), backend="triton"), silu_mul(x))
    close(apply_rope(heads.cuda(), cos.cuda(), sin.cuda(), backend="triton"), apply_rope(heads, cos, sin))
    on_gpu = [cache.cuda() for cache in caches[:2]]
    q = rope_store_kv(heads.cuda(), cos.cuda(), sin.cuda(), *on_gpu, rows.cuda(), backend="triton")
    close(q, rope_store_kv(heads, cos, sin, *caches[2:], rows))
    for found, right in zip(on_gpu, caches[2:], strict=True):
        close(found, right)


def test_tokens_are_the_first_of_the_largest_and_draws_are_reproducible() -> None:
    runs(argmax, "triton")
    logits = randn(5, 152064).bfloat16()
    assert torch.equal(argmax(logits.cuda(), backend="triton").cpu(), argmax(logits))
    temperatures, seeds, steps = torch.tensor([0.0, 0.5, 1.0, 1.0, 2.0]), torch.arange(5), torch.arange(5) * 3
    on_gpu = [t.cuda() for t in (logits, temperatures, seeds, steps)]
    same_in_every_run(lambda: sample_tokens(*on_gpu, backend="triton"))
    assert torch.equal(
        sample_tokens(*on_gpu, backend="triton").cpu(), sample_tokens(logits, temperatures, seeds, steps)
    )


def test_many_copies_in_one_launch() -> None:
    runs(lora_bgmv, "cuda")
    from pss_engine.ops.extension import load_extension

    sources = [(torch.arange(n) % 251).to(torch.uint8).cuda() for n in (1, 16, 1000, 100_000)]
    targets = [torch.zeros_like(source) for source in sources]

    def addresses(tensors: list[Tensor]) -> Tensor:
        return torch.tensor([t.data_ptr() for t in tensors]).cuda()

    tables = addresses(sources), addresses(targets), torch.tensor([s.numel() for s in sources]).cuda()
    stream = torch.cuda.current_stream().cuda_stream
    load_extension().cuda.copy_segments(*(t.data_ptr() for t in tables), len(sources), stream)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(sources, targets, strict=True))
