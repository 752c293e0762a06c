"""The Triton kernels of lora_bgmv: numbers under the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pss_engine.ops import LoraSlice, lora_bgmv, lora_slices
from tests.ops.lora_cases import DTYPES, POPULARITIES, Case, assert_right, make_case

triton = pytest.importorskip("triton", reason="triton is not installed")


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


@pytest.mark.usefixtures("interpreted")
def test_a_prefill_of_long_runs_has_the_bits_of_its_rows_alone() -> None:
    case = make_case(num_rows=37, ranks=(4, 7), in_features=600)
    case.slot_ids[:] = torch.tensor([0] * 20 + [-1] * 3 + [1] * 14)
    together = run(case)
    assert_right(case, together, case.expected())
    for t in (0, 19, 36):
        row = slice(t, t + 1)
        alone = run(replace(case, y=case.y[row], x=case.x[row], slot_ids=case.slot_ids[row]))
        assert torch.equal(alone, together[row])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("widths", [(70,), (33, 70), (65, 7, 130), (16, 8, 8, 8)])
def test_slices_of_a_fused_projection_are_those_of_a_call_each(widths: tuple[int, ...]) -> None:
    cases = [make_case(num_rows=3, ranks=(5, 3), out_features=n, popularity="distinct") for n in widths]
    y = torch.cat([case.y for case in cases], 1)
    places = [sum(widths[:i]) for i in range(len(widths))]
    # a module that only one of the two states adapts, with other ranks than its neighbours
    cases[-1].ranks[0] = 0
    slices = [LoraSlice(*case.args()[2:6], place) for case, place in zip(cases, places, strict=True)]
    expected = [run(replace(case, x=cases[0].x)) for case in cases]
    lora_slices(y, cases[0].x, slices, cases[0].slot_ids, backend="triton")
    assert torch.equal(y, torch.cat(expected, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("popularity", POPULARITIES)
def test_on_a_gpu_the_preferred_backend_gives_the_same_sums(popularity: str) -> None:
    case = make_case(num_rows=133, popularity=popularity, dtype=torch.bfloat16, lora_dtype=torch.bfloat16)
    expected = case.expected()
    on_gpu = Case(*(tensor.cuda() for tensor in case.args()))
    lora_bgmv(*on_gpu.args())
    assert_right(case, on_gpu.y.cpu(), expected)
