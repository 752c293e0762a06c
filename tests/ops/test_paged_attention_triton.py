"""The Triton kernels of the paged cache: numbers under the interpreter, code for each GPU from the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pss_engine.ops import paged_attention, store_kv
from tests import interpreter
from tests.ops.attention_cases import Case, make_case

triton = pytest.importorskip("triton", reason="triton is not installed")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture
def interpreted() -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the CUDA device here, not interpreted")
    interpreter.install()


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
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
def test_store_kv_writes_its_rows_and_no_others(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    fused = torch.randn((4, 9, 6), generator=torch.Generator().manual_seed(91)).to(dtype)
    caches = [torch.full((5, 4, 2, 6), 7.0, dtype=cache_dtype) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    rows = torch.tensor([3, 0, 19, 7])
    store_kv(fused[:, 3:5], fused[:, 7:], *caches, rows, backend="triton")
    store_kv(fused[:, 3:5], fused[:, 7:], *expected, rows, backend="torch")
    for cache, right in zip(caches, expected, strict=True):
        assert torch.equal(cache, right)


@pytest.mark.usefixtures("interpreted")
def test_store_kv_leaves_out_a_row_that_is_outside_the_cache() -> None:
    from pss_engine.kernels.store_kv import store_kv as launch

    new, cache = torch.ones(3, 2, 6), torch.zeros(5, 4, 2, 6)
    launch(new, new, cache, cache.clone(), torch.tensor([-1, 20, 5]))
    assert cache.view(20, -1).sum(1).nonzero().flatten().tolist() == [5]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pss_engine.kernels.paged_attention import attention_kernel, tiles
from pss_engine.kernels.store_kv import store_kernel

integers = dict.fromkeys(["k_stride", "v_stride", "features", "num_rows"], "i32")
integers |= dict.fromkeys(["q_stride", "table_stride", "num_kv_heads", "window"], "i32")
vectors = {"block_tables": "*i32", "query_starts": "*i32", "context_lens": "*i32", "kv_rows": "*i64"}
heads = {"bf16": (128, 5), "fp16": (80, 1), "fp32": (256, 3)}
for dtype, (head_dim, group) in heads.items():
    pointers = dict.fromkeys(["q", "k", "v", "k_cache", "v_cache", "out"], "*" + dtype) | vectors
    attention = {"GROUP": group, "HEAD_DIM": head_dim, "BLOCK": 16}
    attention |= tiles(group, head_dim, 4 if dtype == "fp32" else 2)
    for kernel, constants in ((store_kernel, {"STEP": 1024}), (attention_kernel, attention)):
        kinds = pointers | integers | {"scale_log2": "fp32"}
        signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=aligned)
        for capability in (80, 87, 90, 120):
            options = {"num_warps": 4, "num_stages": 2}
            binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            # what one program may have on the smallest of them
            fits = binary.metadata.shared <= 99 * 1024
            print(kernel.__name__, dtype, capability, binary.metadata.shared, len(binary.asm["cubin"]) > 0 and fits)
"""


def test_the_kernels_compile_for_every_gpu_generation_without_a_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("True") == 3 * 2 * 4, done.stdout


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
