"""The compiled extension ``pss_engine._C``: how it was built, and how it is loaded."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch  # first: its OpenMP runtime is the one that the extension is to use

from pss_engine.errors import BackendUnavailable, ConfigError

# As the kernels know them: pss::DType, pss::FactorType, and a window that hides nothing.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FACTOR_TYPES = {**DTYPES, torch.int8: 3}
NO_WINDOW = 2**62


def build_info() -> dict[str, Any]:
    """How the extension was built.

    Keys: ``extension`` (bool) and ``error`` (why not), ``compiler``, ``openmp`` (bool), ``cuda`` (bool) and
    ``cuda_error`` (why not), ``cuda_archs`` (list of compute capabilities), ``nvcc`` (version). Empty if never built.
    """
    path = Path(__file__).parent.parent / "_build_info.json"
    return json.loads(path.read_text()) if path.exists() else {}


def load_extension() -> Any:
    """The module ``pss_engine._C``.

    Raises:
        BackendUnavailable: it was not built, or does not load.
        ConfigError: ``PSS_CPU_ISA`` names an instruction set that this processor does not run.
    """
    try:
        module = importlib.import_module("pss_engine._C")
    except ImportError as error:
        info = build_info()
        reason = info["error"] if info.get("error") else str(error) if info else "install the package to build it"
        raise BackendUnavailable(f"pss_engine._C is missing: {reason}") from None
    try:
        module.isa()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return module
