"""The batches that the lora suite times."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.suites import lora
from pss_engine.ops.lora import lora_bgmv

SHAPE = (48, 64)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "COLD_BYTES", 100_000)


@pytest.mark.parametrize(("popularity", "num_slots"), [("distinct", 8), ("identical", 1)])
def test_popularity_decides_how_many_states_a_batch_touches(popularity: str, num_slots: int) -> None:
    case = lora.make_case(popularity, 8, 4, SHAPE, torch.float32, "cpu")
    assert case.slot_ids.unique().numel() == num_slots
    factors = num_slots * 4 * (48 + 64) * 4
    assert case.call_bytes == factors + 8 * 48 * 4 + 2 * 8 * 64 * 4
    assert len(case.sets) * factors >= 100_000


def test_zipf_repeats_the_first_states() -> None:
    slots = lora.make_case("zipf", 32, 4, SHAPE, torch.float32, "cpu").slot_ids.bincount()
    assert 1 < len(slots) <= 32
    assert slots[0] == slots.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_backend_passes_its_check(dtype: torch.dtype) -> None:
    case = lora.make_case("distinct", 3, 4, SHAPE, dtype, "cpu")
    checks = {backend: lora.check(case, backend) for backend in lora_bgmv.backends("cpu")}
    assert checks.pop("torch") == "the reference itself"
    assert all(found is True for found in checks.values())


def test_a_wrong_backend_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(y: Tensor, *_: Tensor, backend: str) -> None:
        y += {"torch": 1.0, "cpp": 1.1}[backend]

    monkeypatch.setattr(lora, "lora_bgmv", wrong)
    with pytest.raises(AssertionError, match="not close"):
        lora.check(lora.make_case("distinct", 3, 4, SHAPE, torch.float32, "cpu"), "cpp")
