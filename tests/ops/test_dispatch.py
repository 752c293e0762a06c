"""The choice of a backend: by device and by what imports, said aloud when it is not the preferred one."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from pss_engine.errors import BackendUnavailable, ConfigError
from pss_engine.ops.dispatch import Impl, Op


def reference(x: torch.Tensor, amount: int) -> str:
    """Adds an amount."""
    x += amount
    return "torch"


def check(x: torch.Tensor, amount: int) -> None:
    if amount < 0:
        raise ConfigError(f"amount {amount} is negative")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a backend, importable as ``fast_backend``."""
    module: Any = ModuleType("fast_backend")
    module.add = lambda x, amount: "cpp"
    monkeypatch.setitem(sys.modules, "fast_backend", module)
    return module


def make_op(target: str = "fast_backend:add") -> Op:
    return Op(
        "add",
        reference,
        Impl("cpp", target, devices=("cpu",)),
        Impl("triton", "fast_backend:add", devices=("cuda",)),
        check=check,
    )


@pytest.mark.usefixtures("fast")
def test_the_first_backend_of_the_device_is_used_and_counted() -> None:
    op = make_op()
    assert op(torch.zeros(1), 1) == "cpp"
    assert op(torch.zeros(1), 1) == "cpp"
    assert op.backends("cpu") == ["cpp", "torch"]
    assert op.calls == {"cpp": 2}
    assert op.__doc__ == "Adds an amount."


@pytest.mark.usefixtures("fast")
def test_a_named_backend_is_used_though_another_is_preferred() -> None:
    op = make_op()
    x = torch.zeros(1)
    assert op.using("torch")(x, 3) == "torch"
    assert op(x, 3, backend="torch") == "torch"
    assert x.item() == 6
    assert op.calls == {"torch": 2}


def test_without_the_preferred_backend_the_reference_runs_and_one_warning_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    op = make_op("no_such_module:add")
    with caplog.at_level(logging.WARNING):
        assert op(torch.zeros(1), 1) == "torch"
        assert op(torch.zeros(1), 1) == "torch"
    assert [record.getMessage() for record in caplog.records] == [
        "add: the cpp backend cannot run on cpu: ModuleNotFoundError: No module named 'no_such_module'"
    ]
    assert op.backends("cpu") == ["torch"]


def test_a_backend_is_imported_at_the_first_use_and_once(fast: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    op = make_op()
    assert op(torch.zeros(1), 1) == "cpp"
    monkeypatch.setitem(sys.modules, "fast_backend", None)
    assert op(torch.zeros(1), 1) == "cpp"
    assert make_op()(torch.zeros(1), 1) == "torch"


@pytest.mark.parametrize(
    "backend, reason",
    [
        ("cpp", "add: backend 'cpp' cannot run on cpu: AttributeError: .*no attribute 'missing'"),
        ("cuda", "add: backend 'cuda' cannot run on cpu: unknown; choices: cpp, triton, torch"),
    ],
)
@pytest.mark.usefixtures("fast")
def test_a_named_backend_that_cannot_run_raises_with_the_reason(backend: str, reason: str) -> None:
    op = make_op("fast_backend:missing")
    with pytest.raises(BackendUnavailable, match=reason):
        op(torch.zeros(1), 1, backend=backend)
    assert not op.calls


@pytest.mark.usefixtures("fast")
def test_a_backend_of_another_device_runs_on_the_cpu_only_if_it_is_interpreted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = make_op()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(BackendUnavailable, match="'triton' cannot run on cpu: made for cuda"):
        op(torch.zeros(1), 1, backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert op(torch.zeros(1), 1, backend="triton") == "cpp"
    assert "triton" not in op.backends("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.usefixtures("fast")
def test_without_a_cuda_device_nothing_runs_on_cuda() -> None:
    assert set(make_op().why("cuda").values()) == {"torch sees no CUDA device"}


@pytest.mark.parametrize("backend", ["cpp", "torch", None])
@pytest.mark.usefixtures("fast")
def test_arguments_are_checked_before_any_backend(backend: str | None) -> None:
    x = torch.zeros(1)
    op = make_op()
    with pytest.raises(ConfigError, match="amount -1 is negative"):
        op(x, -1, backend=backend)
    assert x.item() == 0
    assert not op.calls
