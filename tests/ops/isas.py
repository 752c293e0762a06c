"""What the tests of the compiled kernels run under: every instruction set of this processor, several thread counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from pss_engine.ops import linear
from pss_engine.ops.extension import load_extension

BUILT = "cpp" in linear.backends("cpu")
needs_cpp = pytest.mark.skipif(not BUILT, reason=linear.why("cpu")["cpp"])
ISAS = load_extension().supported_isas() if BUILT else ["none"]
each_isa = pytest.mark.parametrize("isa", ISAS)


@contextmanager
def running(isa: str) -> Iterator[None]:
    extension = load_extension()
    before = extension.isa()
    extension.set_isa(isa)
    try:
        yield
    finally:
        extension.set_isa(before)


def with_threads(count: int, compute: Callable[[], Tensor]) -> Tensor:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        return compute()
    finally:
        torch.set_num_threads(before)


def assert_rows_stand_alone(compute: Callable[[Tensor], Tensor], x: Tensor, counts: tuple[int, ...]) -> None:
    """The last rows of x give the same bits whether the others stand beside them or not."""
    together = compute(x)
    for num_rows in counts:
        assert torch.equal(compute(x[-num_rows:]), together[-num_rows:])
