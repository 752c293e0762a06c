"""On the CPU backend a row has the same bits alone, in any batch, in any chunks, from a cold or a warm cache."""

from __future__ import annotations

import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.ops.linear import linear
from tests.engine.adapters import random_state
from tests.real import real_model
from tests.tiny import FAMILIES, tiny_model

pytestmark = pytest.mark.skipif(
    "cpp" not in linear.backends("cpu"), reason="the extension is not built; library GEMMs are not row-independent"
)

PROMPTS = ["short", "one instruction that is longer than a few blocks of the cache", "x", "the third length of prompt"]
PARAMS = SamplingParams(max_new_tokens=5, ignore_eos=True)


def engine_of(model, num_states=2, **config):
    engine = Engine(model, EngineConfig(**{"kv_cache_bytes": 2**24, "block_size": 8, "max_draft_tokens": 0, **config}))
    for i in range(num_states):
        engine.add_state(random_state(model, f"s{i}", seed=i, rank=3 + i))
    return engine


def logits_of(engine, requests):
    """Logits [generated tokens, V] of each request."""
    rows = {}
    run = engine._runner.run

    def recorded(chunks):
        logits = run(chunks)
        for chunk, row in zip([c for c in chunks if c.completes], logits, strict=True):
            rows.setdefault(chunk.sequence.request_id, []).append(row)
        return logits

    engine._runner.run = recorded
    outputs = engine.generate(requests)
    engine._runner.run = run
    return [torch.stack(rows[output.request_id]) for output in outputs]


def requests(sessions):
    return [Request(PROMPTS[i % len(PROMPTS)], PARAMS, session=session) for i, session in enumerate(sessions)]


@pytest.mark.parametrize("family", FAMILIES)
def test_base_rows_beside_states_are_a_base_only_run(family):
    model = tiny_model(family)
    mixed = logits_of(engine_of(model), requests(["s0", None, "s1", None]))
    base = logits_of(engine_of(model), requests([None] * 4))
    assert torch.equal(mixed[1], base[1])
    assert torch.equal(mixed[3], base[3])
    assert not torch.equal(mixed[0], base[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_alone_is_a_row_of_a_batch(family):
    model = tiny_model(family)
    wanted = requests(["s0", None, "s1", "s0", None, "s1", "s0", None])
    together = logits_of(engine_of(model), wanted)
    for request, batched in zip(wanted, together, strict=True):
        assert torch.equal(logits_of(engine_of(model), [request])[0], batched)


@pytest.mark.parametrize("max_batched_tokens", [4, 9, 17])
def test_chunks_of_prefill_change_no_bit(max_batched_tokens):
    model = tiny_model("mistral")
    whole = logits_of(engine_of(model), requests(["s0", None, "s1", None]))
    chunked = engine_of(model, max_batched_tokens=max_batched_tokens, max_num_seqs=4)
    for a, b in zip(whole, logits_of(chunked, requests(["s0", None, "s1", None])), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("first", ["s0", "s1", None])
def test_a_warm_cache_changes_no_bit(first):
    model = tiny_model("qwen2")
    warm = engine_of(model)
    warm.generate(requests([first] * 4))
    cold = logits_of(engine_of(model), requests(["s0", None, "s0", "s1"]))
    for a, b in zip(cold, logits_of(warm, requests(["s0", None, "s0", "s1"])), strict=True):
        assert torch.equal(a, b)


def test_threads_change_no_bit():
    model = tiny_model()
    before = torch.get_num_threads()
    try:
        runs = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs.append(logits_of(engine_of(model), requests(["s0", None, "s1", None])))
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_the_real_model_too():
    model = real_model()
    wanted = [Request([{"role": "user", "content": text}], PARAMS) for text in PROMPTS]
    together = logits_of(engine_of(model, 0, kv_cache_bytes=2**27), wanted)
    alone = logits_of(engine_of(model, 0, kv_cache_bytes=2**27, max_batched_tokens=16, max_num_seqs=4), wanted[1:2])
    assert torch.equal(alone[0], together[1])
