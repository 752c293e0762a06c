"""Resident states as whole numbers: a quarter of the bytes, near the states as they were written, rows still alone."""

from __future__ import annotations

import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.errors import ConfigError
from tests.engine.test_bit_exact import logits_of
from tests.engine.test_fused import engine_of, requests
from tests.tiny import FAMILIES, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_in_one_call_have_the_bits_of_op_by_op(family: str) -> None:
    model = tiny_model(family)
    fused, plain = (engine_of(model, fused_layers=on, state_dtype="int8") for on in (True, False))
    for a, b in zip(logits_of(fused, requests()), logits_of(plain, requests()), strict=True):
        assert torch.equal(a, b)
    assert fused.counters.num_adapter_calls > 0


def test_a_row_alone_is_a_row_of_a_batch_and_near_the_state_as_written() -> None:
    model = tiny_model("llama")
    together = logits_of(engine_of(model, state_dtype="int8"), requests())
    exact = logits_of(engine_of(model), requests())
    for request, batched, wide in zip(requests(), together, exact, strict=True):
        assert torch.equal(logits_of(engine_of(model, state_dtype="int8"), [request])[0], batched)
        assert torch.equal(batched[0], wide[0]) == (request.session is None)
        torch.testing.assert_close(batched[0], wide[0], rtol=0, atol=0.1 * float(wide[0].abs().max()))


def test_states_take_a_quarter() -> None:
    model = tiny_model("llama")
    narrow, wide = engine_of(model, state_dtype="int8"), engine_of(model, state_dtype="float32")
    assert narrow.slots.layout.row_bytes < 0.3 * wide.slots.layout.row_bytes
    with pytest.raises(ConfigError, match="state_dtype 'int4' is unknown; choices: auto"):
        EngineConfig(state_dtype="int4")


@pytest.mark.gpu
def test_a_gpu_says_which_it_takes() -> None:
    from pss_engine.models import load_model
    from tests.tiny import tiny_model_folder

    model = load_model(str(tiny_model_folder("llama")), device="cuda")
    with pytest.raises(ConfigError, match="state_dtype 'int8' is for the CPU"):
        Engine(model, EngineConfig(state_dtype="int8"))
