"""Set-up of every test run: Triton interpreted and GPU tests skipped without a GPU, examples always the same."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line sets it; read when OpenMP is loaded

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    # Triton reads this when it is imported and when a kernel is defined, so it is set before any test module is read.
    os.environ["TRITON_INTERPRET"] = "1"


# What a test loads is kept for this run alone.
_cache = tempfile.TemporaryDirectory(prefix="pss-cache-")
os.environ["PSS_CACHE_DIR"] = _cache.name

# The same examples in every run, and no verdict on the speed of a shared machine.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))
