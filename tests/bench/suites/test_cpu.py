"""The cases that the cpu suite times."""

from __future__ import annotations

import pytest
import torch

from bench import environment
from bench.suites.cpu import kernels
from bench.suites.cpu.models import packed_bytes
from pss_engine.models import load_model
from pss_engine.ops import PackedWeight
from tests.ops.isas import needs_cpp
from tests.tiny import tiny_model, tiny_model_folder

pytestmark = needs_cpp


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "COLD_BYTES", 100_000)
    monkeypatch.setattr(environment, "MULTIPLY_ADD_ROUNDS", 1000)


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_weights_of_a_case_do_not_fit_in_the_cache_together(format: str) -> None:
    case = kernels.make_case(format, 3, 256, 64)
    assert case.flops == 2 * 3 * 256 * 64
    assert sum(weight.num_bytes for weight in case.packed) >= 100_000
    assert len({weight.panels.data_ptr() for weight in case.packed}) == len(case.packed)
    assert case.check(False) is True


def test_a_wrong_kernel_is_not_timed() -> None:
    case = kernels.make_case("q4_1", 3, 256, 64)
    wrong = kernels.Case(case.x, case.dense, [PackedWeight.pack(case.dense * 1.1)])
    with pytest.raises(AssertionError, match="not close"):
        wrong.check(False)


def test_a_run_measures_every_format_beside_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SHAPES", ((64, 48), (64, 96)))
    monkeypatch.setattr(kernels, "NUM_ROWS", (1, 8))
    monkeypatch.setattr(environment, "BANDWIDTH_BYTES", 2**20)
    found = list(kernels.run(quick=False))
    assert {m.params["weights"] for m in found} == {"float32", "bfloat16", "q8_0", "q4_0", "q4_1"}
    assert {m.backend for m in found} == {"cpp", "cpp, rows in int8", kernels.PEER}
    assert all(m.limit_gbps and m.limit_gflops and m.gbps and m.gflops for m in found)
    assert all(m.checked is True for m in found if m.backend != kernels.PEER)


def test_a_weight_that_is_used_twice_is_counted_once() -> None:
    model = tiny_model("llama")
    sizes = [weight.numel() * 4 for name, weight in _weights(model).items()]
    assert sum(sizes) <= packed_bytes(model) <= sum(sizes) * 1.5, "padding to sixteen rows is all that is over"
    quantized = load_model(str(tiny_model_folder("llama")), device="cpu", weights="int8")
    assert packed_bytes(quantized) < packed_bytes(model) / 2


def _weights(model) -> dict[str, torch.Tensor]:
    network = model.transformer
    linears = {f"{layer.index}.{name}": linear for layer in network.layers for name, linear in layer.linears.items()}
    return {name: linear.unpacked() for name, linear in linears.items()}
