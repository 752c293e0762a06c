"""Whose memory a GPU computes on, and how much of it can be had."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pss_engine import process_memory
from pss_engine.engine.parts import check_memory
from pss_engine.errors import CapacityError
from pss_engine.ops import device as devices

MEMINFO = (
    "MemTotal:       64000000 kB\nMemFree:         1000000 kB\nMemAvailable:   40000000 kB\nHugePages_Total:       0\n"
)
GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A GPU as its driver describes it, beside a host with 64 GB."""
    facts = {"is_integrated": 0}
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(process_memory, "PROC", tmp_path)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="Orin", major=8, minor=7, **facts)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 1 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1 << 29)
    return facts


def test_a_discrete_card_has_its_own_memory_whatever_its_name_and_the_host_have(gpu: dict[str, int]) -> None:
    assert devices.memory_of(GPU) == devices.DeviceMemory(8 << 30, (3 << 30) + (1 << 29), False)


def test_an_integrated_gpu_has_what_the_system_can_give(gpu: dict[str, int]) -> None:
    gpu["is_integrated"] = 1
    memory = devices.memory_of(GPU)
    assert memory == devices.DeviceMemory(64000000 * 1024, 40000000 * 1024 + (1 << 29), True)


def test_a_cache_that_does_not_fit_is_refused_with_both_sizes(gpu: dict[str, int]) -> None:
    check_memory(GPU, 3 << 30)
    with pytest.raises(CapacityError, match=r"memory of cuda:0: 5368709120 bytes needed, 3758096384 bytes free"):
        check_memory(GPU, 5 << 30)
    gpu["is_integrated"] = 1
    check_memory(GPU, 5 << 30)
    with pytest.raises(CapacityError, match="which is the host's"):
        check_memory(GPU, 50 << 30)


def test_the_host_has_what_the_system_says() -> None:
    memory = devices.memory_of(torch.device("cpu"))
    assert 0 < memory.free <= memory.total
    assert not memory.integrated


def test_bandwidths_are_measured() -> None:
    assert devices.copy_gbps(torch.device("cpu")) > 0.1
    assert devices.pinned_gbps(torch.device("cpu"), 1 << 20) > 0.1
