"""The cases that the linear suite times."""

from __future__ import annotations

import pytest
import torch

from bench.suites import Options, linear
from pss_engine.ops import PackedWeight
from tests.ops.isas import needs_cpp

pytestmark = needs_cpp


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "COLD_BYTES", 100_000)
    monkeypatch.setattr(linear, "ROUNDS", 1000)


def test_weights_of_a_case_do_not_fit_in_the_cache_together() -> None:
    case = linear.make_case(3, 48, 64)
    assert case.weight_bytes == 4 * 48 * 64
    assert case.flops == 2 * 3 * 48 * 64
    assert len(case.dense) == len(case.packed)
    assert len(case.dense) * case.weight_bytes >= 100_000
    assert not torch.equal(case.dense[0], case.dense[1])


def test_a_wrong_kernel_is_not_timed() -> None:
    case = linear.make_case(3, 48, 64)
    assert case.check() is True
    wrong = linear.Case(case.x, case.dense, [PackedWeight.pack(case.dense[0] * 1.1)])
    with pytest.raises(AssertionError, match="not close"):
        wrong.check()


def test_a_run_measures_both_beside_the_limits(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(linear, "SHAPES", ((48, 64), (48, 96)))
    monkeypatch.setattr(linear, "NUM_ROWS", (1, 8))
    found = list(linear.run(Options(quick=False, data=tmp_path)))
    assert [m.backend for m in found] == ["cpp", linear.PEER] * 4
    assert all(m.limit_gbps and m.limit_gflops and m.gbps and m.gflops for m in found)
    assert found[0].checked is True
