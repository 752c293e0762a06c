"""Keys and values in a type of their own: half the bytes, the same rules for bits and books."""

from __future__ import annotations

import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.errors import ConfigError
from tests.engine.test_bit_exact import logits_of
from tests.engine.test_fused import engine_of, requests
from tests.tiny import FAMILIES, tiny_model

NARROW = ("bfloat16", "float16")


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_in_one_call_have_the_bits_of_op_by_op(family: str, kind: str) -> None:
    model = tiny_model(family)
    fused, plain = (engine_of(model, fused_layers=on, kv_cache_dtype=kind) for on in (True, False))
    for a, b in zip(logits_of(fused, requests()), logits_of(plain, requests()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", NARROW)
def test_a_row_alone_is_a_row_of_a_batch_and_near_the_wide_cache(kind: str) -> None:
    model = tiny_model("llama")
    together = logits_of(engine_of(model, kv_cache_dtype=kind), requests())
    wide = logits_of(engine_of(model), requests())
    for request, batched, exact in zip(requests(), together, wide, strict=True):
        assert torch.equal(logits_of(engine_of(model, kv_cache_dtype=kind), [request])[0], batched)
        torch.testing.assert_close(batched[0], exact[0], rtol=0, atol=0.1)
        assert not torch.equal(batched, exact)


def test_narrow_caches_hold_twice_the_tokens_and_are_charged_half() -> None:
    model = tiny_model("llama")
    wide, narrow = engine_of(model), engine_of(model, kv_cache_dtype="float16")
    assert narrow.memory.geometry.bytes_per_token * 2 == wide.memory.geometry.bytes_per_token
    assert narrow.memory.geometry.dtype == "float16"
    assert narrow.memory.max_tokens > 1.3 * wide.memory.max_tokens  # the hidden state at the cut stays as wide
    usage = [engine.generate(requests()[:1])[0].usage for engine in (wide, narrow)]
    assert usage[0].kv_peak_bytes == 2 * usage[1].kv_peak_bytes
    narrow.check()


def test_a_type_that_does_not_run_here_or_anywhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="'float8_e4m3fn' is for CUDA; on cpu: float32, bfloat16, float16"):
        Engine(tiny_model("llama"), EngineConfig(kv_cache_dtype="float8_e4m3fn"))
    with pytest.raises(ConfigError, match="kv_cache_dtype 'int3' is unknown"):
        EngineConfig(kv_cache_dtype="int3")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float16", "float8_e4m3fn"])
def test_narrow_caches_on_a_gpu_stay_near_the_wide_one(kind: str) -> None:
    from pss_engine.models import load_model
    from tests.tiny import tiny_model_folder

    model = load_model(str(tiny_model_folder("llama")), device="cuda", dtype="float32")
    wide, narrow = (logits_of(engine_of(model, kv_cache_dtype=each), requests()) for each in ("auto", kind))
    for a, b in zip(wide, narrow, strict=True):
        torch.testing.assert_close(a[0], b[0], rtol=0, atol=0.3 if "8" in kind else 0.05)
