"""What doctor says of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pss_engine.cli import gpu_checks

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build\nGCC version:  gcc 12.2.0\n"
FACTS = {
    "names": ["Orin"], "arch": "sm_87", "integrated": True, "cuda": "12.6", "driver": "", "memory_bytes": 64 << 30,
    "free_bytes": 40 << 30, "copy_gbps": 150.0, "pinned_gbps": 30.5,
}  # fmt: skip


def test_the_driver_is_read_from_the_kernel_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(gpu_checks.shutil, "which", lambda _: None)
    assert gpu_checks.driver_version() == ""
    (tmp_path / "version").write_text(VERSION)
    assert gpu_checks.driver_version() == "580.65.06"


def test_a_line_names_what_decides_how_states_are_held() -> None:
    line = gpu_checks.gpu_line(FACTS)
    assert "Orin, sm_87, integrated: memory shared with the host, CUDA 12.6, driver unknown" in line
    assert "40.0 of 64.0 GiB free, copy 150.0 GB/s, from pinned memory 30.5 GB/s" in line
    assert "discrete" in gpu_checks.gpu_line({**FACTS, "integrated": False})


def test_a_gpu_that_torch_does_not_see_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_checks, "driver_version", lambda: "580.65.06")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_checks.unused_gpu() == "driver 580.65.06 is there, but torch sees no GPU: torch is a CPU build"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "is built for CUDA 13.0" in gpu_checks.unused_gpu()


@pytest.mark.gpu
def test_facts_of_this_gpu() -> None:
    facts = gpu_checks.gpu_facts()
    assert facts["driver"]
    assert facts["copy_gbps"] > facts["pinned_gbps"] > 0
    assert 0 < facts["free_bytes"] <= facts["memory_bytes"]
