"""The Triton kernels of lora_bgmv: numbers under the interpreter, code for each GPU generation from the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pss_engine.ops import lora_bgmv
from tests import interpreter
from tests.ops.lora_cases import DTYPES, POPULARITIES, Case, assert_right, make_case

triton = pytest.importorskip("triton", reason="triton is not installed")


@pytest.fixture
def interpreted() -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the CUDA device here, not interpreted")
    interpreter.install()


def run(case: Case) -> torch.Tensor:
    y = case.y.clone()
    lora_bgmv.using("triton")(*replace(case, y=y).args())
    return y


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("popularity", POPULARITIES)
def test_rows_of_any_mixture_of_slots_get_their_own_update(popularity: str) -> None:
    case = make_case(num_rows=4, ranks=(5, 0, 9), popularity=popularity)
    assert_right(case, run(case), case.expected())


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("rank", [1, 33, 64])
def test_every_rank_is_summed_whole(rank: int) -> None:
    case = make_case(num_rows=1, ranks=(rank,))
    assert_right(case, run(case), case.expected())


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lora_dtype", DTYPES, ids=str)
def test_rows_and_factors_may_have_different_dtypes(dtype: torch.dtype, lora_dtype: torch.dtype) -> None:
    case = make_case(num_rows=2, ranks=(4, 3), popularity="distinct", dtype=dtype, lora_dtype=lora_dtype)
    assert_right(case, run(case), case.expected())


@pytest.mark.usefixtures("interpreted")
def test_rows_longer_than_one_step_and_slices_of_wider_tensors() -> None:
    case = make_case(num_rows=2, ranks=(3,), in_features=1500, out_features=130)
    case.slot_ids.zero_()
    fused = torch.full((2, 400), 5.0)
    fused[:, 200:330] = case.y
    expected = case.expected()
    y = fused[:, 200:330]
    lora_bgmv.using("triton")(*replace(case, y=y, x=torch.cat([case.x, case.x], 1)[:, 1500:]).args())
    assert_right(case, y, expected)
    assert (fused[:, :200] == 5).all()
    assert (fused[:, 330:] == 5).all()


@pytest.mark.usefixtures("interpreted")
def test_a_row_whose_slot_is_out_of_range_is_left_alone() -> None:
    case = make_case(num_rows=3, ranks=(4, 4))
    case.slot_ids.copy_(torch.tensor([-1, 2, -7]))
    assert torch.equal(run(case), case.y)


@pytest.mark.usefixtures("interpreted")
def test_a_row_does_not_depend_on_the_other_rows() -> None:
    case = make_case(num_rows=3, ranks=(4, 7), popularity="distinct")
    together = run(case)
    for t in range(3):
        row = slice(t, t + 1)
        alone = run(replace(case, y=case.y[row], x=case.x[row], slot_ids=case.slot_ids[row]))
        assert torch.equal(alone, together[row])


COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pss_engine.kernels.lora_bgmv import expand_kernel, shrink_kernel

integers = dict.fromkeys(["x_stride", "y_stride", "a_stride", "b_stride"], "i64")
integers |= dict.fromkeys(["in_features", "out_features", "max_rank", "num_slots"], "i32")
for dtype in ("bf16", "fp16", "fp32"):
    pointers = dict.fromkeys(["x", "y", "lora_a", "lora_b"], "*" + dtype)
    pointers |= {"scaling": "*fp32", "low": "*fp32", "ranks": "*i32", "slot_ids": "*i32"}
    for kernel in (shrink_kernel, expand_kernel):
        constants = {"RANKS": 4, "STEP": 1024} if kernel is shrink_kernel else {"COLUMNS": 64, "RANK": 64}
        signature = {name: (pointers | integers).get(name, "constexpr") for name in kernel.arg_names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=aligned)
        for capability in (80, 87, 90, 110, 120):
            binary = triton.compile(source, target=GPUTarget("cuda", capability, 32))
            print(kernel.__name__, dtype, capability, len(binary.asm["cubin"]) > 0)
"""


def test_the_kernels_compile_for_every_gpu_generation_without_a_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("True") == 3 * 2 * 5


@pytest.mark.gpu
@pytest.mark.parametrize("popularity", POPULARITIES)
def test_on_a_gpu_the_preferred_backend_gives_the_same_sums(popularity: str) -> None:
    case = make_case(num_rows=133, popularity=popularity, dtype=torch.bfloat16, lora_dtype=torch.bfloat16)
    expected = case.expected()
    on_gpu = Case(*(tensor.cuda() for tensor in case.args()))
    lora_bgmv(*on_gpu.args())
    assert_right(case, on_gpu.y.cpu(), expected)
