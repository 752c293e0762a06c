"""FlashAttention as a backend: probed without harm, called with the paged layout that it knows."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from pss_engine.errors import BackendUnavailable, ConfigError
from tests.ops.attention_cases import Case, make_case

MODULE = "pss_engine.ops.flash"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == MODULE or name.startswith("flash_attn")]:
        monkeypatch.delitem(sys.modules, name)


def installed(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    package, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    package.__path__ = []
    interface.__spec__ = importlib.machinery.ModuleSpec(interface.__name__, None)
    for name, function in functions.items():
        setattr(interface, name, function)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, interface.__name__, interface)


def test_where_it_is_not_installed_the_reason_says_how() -> None:
    with pytest.raises(BackendUnavailable, match=r"not installed.*no-build-isolation"):
        importlib.import_module(MODULE)


def test_a_binary_for_another_torch_is_a_reason_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)  # the function is missing, as after an ABI mismatch
    with pytest.raises(BackendUnavailable, match="does not load: cannot import name"):
        importlib.import_module(MODULE)


def varlen(case: Case) -> Any:
    """What flash_attn_varlen_func computes with a block table, by the formula of the case."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options["causal"]
        assert options["cu_seqlens_q"].tolist() == case.query_starts.tolist()
        lens = options["cu_seqlens_k"].diff()
        assert options["cu_seqlens_k"].dtype == torch.int32
        assert lens.tolist() == case.context_lens.tolist()
        assert options["max_seqlen_k"] >= int(lens.max())
        assert options["block_table"].min() >= 0
        assert options["window_size"] == ((-1, -1) if case.window is None else (case.window - 1, 0))
        return case.expected().to(q.dtype)

    return attend


@pytest.mark.parametrize("window", [None, 7])
def test_rows_and_chunks_are_described_without_reading_them(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    half = {"dtype": torch.bfloat16, "cache_dtype": torch.bfloat16}
    case = make_case((1, 3), (300, 9), block_size=256, window=window, **half)
    installed(monkeypatch, flash_attn_varlen_func=varlen(case))
    flash = importlib.import_module(MODULE)
    arguments = (case.q, case.k_cache, case.v_cache, case.block_tables, case.query_starts, case.context_lens)
    out = flash.paged_attention(*arguments, case.scale, window)
    assert torch.equal(out, case.expected().bfloat16())


def test_blocks_and_dtypes_that_it_cannot_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case((1,), (20,))
    installed(monkeypatch, flash_attn_varlen_func=varlen(case))
    flash = importlib.import_module(MODULE)
    arguments = (case.q, case.k_cache, case.v_cache, case.block_tables, case.query_starts, case.context_lens)
    with pytest.raises(ConfigError, match=r"multiple of 256 and one half type, found 16, torch\.float32"):
        flash.paged_attention(*arguments, case.scale)
