"""The GPU suite with a tiny shape on the CPU: every part runs and checks what it times; what is wrong is not timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.rows import Measurement
from bench.suites import Options, Skipped, gpu
from bench.suites.gpu import clues, decoding, kernels, searching, swapping
from bench.suites.gpu.model import RandomCheckpoint, Shape, random_model
from pss_engine.models import LoadedModel

TINY = Shape("tiny", 64, 96, 3, 4, 2, 300, session_layers=1)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return random_model(TINY, "cpu")


def by_metric(found: list[Measurement]) -> dict[str, list[Measurement]]:
    return {name: [m for m in found if m.metric == name] for name in {m.metric for m in found}}


def test_without_a_gpu_the_suite_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Skipped, match="sees no CUDA device"):
        next(iter(gpu.run(Options(True, Path()))))


def test_random_weights_are_the_same_in_every_run_and_differ_between_tensors() -> None:
    checkpoint = RandomCheckpoint(TINY, torch.float32)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(checkpoint.tensor(name), RandomCheckpoint(TINY, torch.float32).tensor(name))
    assert not torch.equal(checkpoint.tensor(name), checkpoint.tensor(name.replace("q_proj", "o_proj")))


def test_every_kernel_is_compared_before_it_is_timed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CALLS", 1)
    found = list(kernels.run(model, TINY, quick=True))
    assert {m.case for m in found} == {"copy", "lora_slices", "paged_attention", "add_rms_norm", "silu_mul", "argmax"}
    assert all(m.checked is True and m.gbps and m.limit_gbps for m in found if m.case != "copy")
    case = next(kernels.cases(TINY, torch.device("cpu"), torch.float32, True))
    calls: list[str] = []

    def wrong(backend: str) -> Any:
        calls.append(backend)
        return case.run(backend) + len(calls)

    with pytest.raises(RuntimeError, match="differs from the reference"):
        list(kernels._measure(kernels.Case(case.op, {}, 1, wrong), torch.device("cpu"), 1.0))


def test_decoding_covers_every_use_of_states_with_tokens_that_repeat(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "QUICK_ROWS", (1, 3))
    monkeypatch.setattr(decoding, "QUICK_TOKENS", 4)
    found = list(decoding.run(model, TINY, quick=True))
    times = by_metric(found)["time_per_token"]
    assert {(m.params["states"], m.params["rows"]) for m in times} == {
        (states, rows) for states in ("none", "idle", "one", "distinct") for rows in (1, 3)
    }
    assert all(m.checked is True for m in found)
    assert by_metric(found)["identical"][0].samples == [1.0]


def test_loads_are_timed_from_both_tiers_and_beside_other_rows(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "QUICK_STEPS", 6)
    found = list(swapping.run(model, TINY, quick=True))
    loads = [m for m in found if m.case == "load of a state"]
    assert {m.params["where"] for m in loads} == {"from disk", "from host memory"}
    assert all(m.checked is True and m.gbps and m.limit_gbps for m in loads)
    assert {m.metric for m in found if m.case == "rows beside loads"} == {"step_p99", "p99_over_quiet"}


def test_clues_have_the_same_tokens_alone_in_a_batch_and_drafted(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clues, "QUICK_TOKENS", 6)
    found = list(clues.run(model, TINY, quick=True))
    assert {m.params["drafted"] for m in found} == {False, True}
    assert all(m.checked is True for m in found)


def test_a_search_is_compared_before_it_is_timed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(searching.NUM_PASSAGES, "cpu", 300)
    found = list(searching.run(model, TINY, quick=True))
    assert [m.params["queries"] for m in found] == [1, 4]
    assert all(m.checked is True and m.gbps and m.limit_gbps for m in found)
