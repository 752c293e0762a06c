"""Set-up of every test run: Triton interpreted and GPU tests skipped without a GPU, examples always the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line sets it; read when OpenMP is loaded

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from pss_engine.engine import Engine, RequestOutput

if not torch.cuda.is_available():
    # Triton reads this when it is imported and when a kernel is defined, so it is set before any test module is read.
    os.environ["TRITON_INTERPRET"] = "1"


# The same examples in every run, and no verdict on the speed of a shared machine.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


MAX_PROVED_BLOCKS = 4096
"""Engines with more blocks than this are not proved after every step: that would take longer than the step."""


@pytest.fixture(autouse=True)
def books_balance_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test is about: charges and cached blocks are the bytes occupied after every step of its engines."""
    from pss_engine.engine import Engine

    step = Engine.step

    def proved(engine: Engine) -> list[RequestOutput]:
        outputs = step(engine)
        if all(pool.num_blocks <= MAX_PROVED_BLOCKS for pool in engine.memory.pools.values()):
            engine.memory.check(engine._live)
        return outputs

    monkeypatch.setattr(Engine, "step", proved)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))
