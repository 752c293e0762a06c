"""Fixtures of the tests of the ops."""

from __future__ import annotations

import pytest
import torch

from tests import interpreter


@pytest.fixture
def interpreted() -> None:
    """Triton kernels run under the patched interpreter."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the CUDA device here, not interpreted")
    interpreter.install()
