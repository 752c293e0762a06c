"""The compiled extension: what it says of itself, and what is said when it is not there."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pss_engine.errors import BackendUnavailable
from pss_engine.ops import extension, lora_bgmv

ROOT = Path(__file__).parent.parent.parent
built = pytest.mark.skipif("cpp" not in lora_bgmv.backends("cpu"), reason=lora_bgmv.why("cpu")["cpp"])


@built
def test_it_agrees_with_the_record_of_its_build() -> None:
    info, module = extension.build_info(), extension.load_extension()
    assert info["extension"]
    assert info["error"] == ""
    assert info["cuda"] == module.with_cuda()
    assert bool(info["cuda_error"]) != info["cuda"]
    assert info["openmp"] == module.with_openmp()
    assert module.isa() in module.supported_isas()
    assert module.device_count() >= 0


@built
def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    module = extension.load_extension()
    before = module.isa()
    with pytest.raises(ValueError, match="isa=sse9 cannot be used here; this processor runs: scalar"):
        module.set_isa("sse9")
    assert module.isa() == before


@built
@pytest.mark.parametrize(
    "level, shown",
    [
        ("scalar", "scalar"),
        ("sse9", "ConfigError: PSS_CPU_ISA=sse9 cannot be used here; this processor runs: scalar"),
    ],
)
def test_the_environment_forces_the_instruction_set_down(level: str, shown: str) -> None:
    code = """if True:
        from pss_engine.errors import ConfigError
        from pss_engine.ops import lora_bgmv
        from pss_engine.ops.extension import load_extension
        try:
            lora_bgmv.why("cpu")
            print(load_extension().isa())
        except ConfigError as error:
            print("ConfigError:", error)
    """
    environment = {**os.environ, "PSS_CPU_ISA": level, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(shown), done.stderr


@pytest.mark.parametrize(
    "record, reason",
    [
        ({}, "pss_engine._C is missing: install the package to build it"),
        ({"extension": False, "error": "c++ not found"}, "pss_engine._C is missing: c\\+\\+ not found"),
        ({"extension": True, "error": ""}, "pss_engine._C is missing: import of pss_engine._C halted"),
    ],
)
def test_its_absence_is_explained(record: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pss_engine._C", None)
    monkeypatch.setattr(extension, "build_info", lambda: record)
    with pytest.raises(BackendUnavailable, match=reason):
        extension.load_extension()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CUDA part can run here")
def test_a_cuda_part_that_cannot_run_is_a_reason_not_a_crash() -> None:
    with pytest.raises(BackendUnavailable, match=r"pss_engine\._C is missing|has no CUDA part|cannot run: CUDA driver"):
        importlib.import_module("pss_engine.ops.cuda")


def test_neither_triton_nor_the_cuda_part_is_imported_before_it_is_used() -> None:
    modules = "{'triton', 'flash_attn', 'pss_engine.ops.cuda', 'pss_engine.ops.flash'}"
    code = f"import sys, pss_engine.ops, pss_engine.engine, pss_engine.session; print({modules} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
