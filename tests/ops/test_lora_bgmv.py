"""lora_bgmv: every backend of the CPU does what the formula says, and the compiled one treats each row alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import lora_bgmv
from pss_engine.ops.extension import load_extension
from tests.ops.lora_cases import DTYPES, NUM_ROWS, POPULARITIES, RANKS, Case, assert_right, make_case

BACKENDS = lora_bgmv.backends("cpu")
needs_cpp = pytest.mark.skipif("cpp" not in BACKENDS, reason=lora_bgmv.why("cpu")["cpp"])
ISAS = load_extension().supported_isas() if "cpp" in BACKENDS else ["none"]


def run(case: Case, backend: str) -> torch.Tensor:
    """y after the op; the case itself is left as it is."""
    y = case.y.clone()
    lora_bgmv.using(backend)(*replace(case, y=y).args())
    return y


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    extension = load_extension()
    before = extension.isa()
    extension.set_isa(request.param)
    yield request.param
    extension.set_isa(before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("popularity", POPULARITIES)
def test_rows_of_any_mixture_of_slots_get_their_own_update(backend: str, num_rows: int, popularity: str) -> None:
    case = make_case(num_rows, popularity=popularity)
    assert_right(case, run(case, backend), case.expected())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rank", RANKS)
def test_every_rank_is_summed_whole(backend: str, rank: int) -> None:
    case = make_case(ranks=(rank, rank))
    assert_right(case, run(case, backend), case.expected())


def in_int8(case: Case) -> Case:
    """The case with its factors as whole numbers; what lies beyond a rank is no number, but must not matter."""
    steps = 0.01
    codes = {
        name: (getattr(case, name) / steps).nan_to_num(7).clamp(-127, 127).round() for name in ("lora_a", "lora_b")
    }
    whole = {name: values.to(torch.int8) for name, values in codes.items()}
    return replace(case, scaling=case.scaling * steps**2, **whole)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("popularity", POPULARITIES)
def test_factors_may_be_whole_numbers_with_their_step_in_the_scaling(
    backend: str, dtype: torch.dtype, popularity: str
) -> None:
    case = in_int8(make_case(7, dtype=dtype, popularity=popularity))
    assert_right(case, run(case, backend), case.expected())


@needs_cpp
def test_every_instruction_set_takes_whole_numbers(isa: str) -> None:
    case = in_int8(make_case(7, ranks=(33, 5), in_features=37, out_features=29))
    assert_right(case, run(case, "cpp"), case.expected())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lora_dtype", DTYPES, ids=str)
def test_rows_and_factors_may_have_different_dtypes(backend: str, dtype: torch.dtype, lora_dtype: torch.dtype) -> None:
    case = make_case(dtype=dtype, lora_dtype=lora_dtype)
    assert_right(case, run(case, backend), case.expected())


@needs_cpp
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("in_features, out_features", [(1, 1), (15, 5), (64, 16), (100, 70)])
def test_every_instruction_set_gives_the_same_sums(
    isa: str, dtype: torch.dtype, in_features: int, out_features: int
) -> None:
    for lora_dtype in DTYPES:
        case = make_case(in_features=in_features, out_features=out_features, dtype=dtype, lora_dtype=lora_dtype)
        assert_right(case, run(case, "cpp"), case.expected())


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_a_slot_and_slots_of_rank_zero_keep_their_bits(backend: str) -> None:
    case = make_case(num_rows=133)
    untouched = (case.slot_ids == -1) | (case.slot_ids == 2)
    assert case.ranks[2] == 0
    assert 0 < untouched.sum() < 133
    y = run(case, backend)
    assert torch.equal(y[untouched], case.y[untouched])
    assert (y[~untouched] != case.y[~untouched]).any(1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_of_fused_projections_and_of_one_slot_buffer(backend: str) -> None:
    case = make_case()
    fused = torch.full((7, 300), 5.0)
    fused[:, 100:170] = case.y
    inputs = torch.full((7, 150), torch.nan)
    inputs[:, 25:125] = case.x
    numel_a, numel_b = case.lora_a[0].numel(), case.lora_b[0].numel()
    slots = torch.full((4, 10 + numel_a + numel_b), torch.nan)
    lora_a, lora_b = slots[:, 10 : 10 + numel_a], slots[:, 10 + numel_a :]
    lora_a.copy_(case.lora_a.view(4, -1))
    lora_b.copy_(case.lora_b.view(4, -1))
    y = fused[:, 100:170]
    views = replace(case, y=y, x=inputs[:, 25:125], lora_a=lora_a.view(4, 32, 100), lora_b=lora_b.view(4, 70, 32))
    expected = case.expected()
    lora_bgmv.using(backend)(*views.args())
    assert_right(case, y, expected)
    assert (fused[:, :100] == 5).all()
    assert (fused[:, 170:] == 5).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_and_a_batch_of_the_base_model(backend: str) -> None:
    assert run(make_case(num_rows=0, popularity="distinct"), backend).shape == (0, 70)
    case = make_case()
    case.slot_ids.fill_(-1)
    assert torch.equal(run(case, backend), case.y)


@needs_cpp
def test_a_row_does_not_depend_on_the_other_rows_or_their_order(isa: str) -> None:
    case = make_case(num_rows=133, ranks=(32, 33, 0, 5), in_features=576, out_features=320)
    together = run(case, "cpp")
    order = torch.randperm(133, generator=torch.Generator().manual_seed(7))
    shuffled = run(replace(case, y=case.y[order], x=case.x[order], slot_ids=case.slot_ids[order]), "cpp")
    assert torch.equal(shuffled, together[order])
    for t in range(0, 133, 6):
        row = slice(t, t + 1)
        alone = run(replace(case, y=case.y[row], x=case.x[row], slot_ids=case.slot_ids[row]), "cpp")
        assert torch.equal(alone, together[row])


@needs_cpp
def test_a_row_does_not_depend_on_the_number_of_threads() -> None:
    case = make_case(num_rows=133, ranks=(32, 33, 0, 5), in_features=576, out_features=320)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        serial = run(case, "cpp")
        torch.set_num_threads(3)
        assert torch.equal(run(case, "cpp"), serial)
    finally:
        torch.set_num_threads(before)


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_floats_are_read_exactly_and_rounded_as_torch_rounds(isa: str, dtype: torch.dtype) -> None:
    every_value = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = every_value[every_value.float().isfinite()].view(-1, 1)
    factor = torch.tensor([[[1.2345]]])
    slots = torch.zeros(len(x), dtype=torch.int32)
    one, rank = torch.ones(1), torch.ones(1, dtype=torch.int32)
    y = torch.zeros_like(x)
    lora_bgmv.using("cpp")(y, x, torch.ones(1, 1, 1), factor, one, rank, slots)
    assert torch.equal(y, (x.float() * factor.flatten()).to(dtype))


def _with(**changes: Any) -> Case:
    return replace(make_case(), **changes)


MISUSE = {
    "y of other width": (lambda: _with(lora_b=torch.zeros(4, 71, 32)), "shapes do not fit.*lora_b \\[4, 71, 32\\]"),
    "x of another dtype": (lambda: _with(x=torch.zeros(7, 100).half()), "dtypes do not fit.*x torch.float16"),
    "slots of int64": (lambda: _with(slot_ids=torch.zeros(7).long()), "dtypes do not fit.*slot_ids torch.int64"),
    "transposed x": (lambda: _with(x=torch.zeros(100, 7).T), "strides do not fit"),
    "rows of y on top of each other": (lambda: _with(y=torch.zeros(1, 70).expand(7, 70)), "strides do not fit"),
    "one vector as y": (lambda: _with(y=torch.zeros(70)), "shapes do not fit.*y \\[70\\]"),
    "tensors on two devices": (lambda: _with(x=torch.zeros(7, 100, device="meta")), "devices do not fit.*x meta"),
    "training": (lambda: _with(x=torch.zeros(7, 100, requires_grad=True)), "no gradient flows"),
    "slot too high": (
        lambda: _with(slot_ids=torch.tensor([0, 4] * 3 + [0]).int()),
        "slot_ids\\[1\\] = 4, must be -1 .*to 3",
    ),
    "slot too low": (lambda: _with(slot_ids=torch.tensor([0, 0, -2, 0, 0, 0, 0]).int()), "slot_ids\\[2\\] = -2"),
    "rank too high": (lambda: _with(ranks=torch.tensor([1, 2, 3, 33]).int()), "ranks\\[3\\] = 33, must be 0 to 32"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("misuse", MISUSE)
def test_arguments_outside_the_contract_are_refused_before_y_is_touched(backend: str, misuse: str) -> None:
    make, message = MISUSE[misuse]
    case = make()
    before = case.y.clone()
    with pytest.raises(ConfigError, match=message):
        lora_bgmv.using(backend)(*case.args())
    assert torch.equal(case.y, before)
