"""Sampled requests: cut to top_k and top_p, drawn with their temperature, the same again with the same seed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from tests.engine.test_bit_exact import logits_of
from tests.tiny import tiny_model

PROMPT = "the prompt of all"
COUNT = 2000


def engine_of(**config):
    return Engine(tiny_model(), EngineConfig(**{"kv_cache_bytes": 2**24, "max_num_seqs": 256, **config}))


def draws(**sampling):
    """First tokens of many requests that differ in their seed only."""
    requests = [
        Request(PROMPT, SamplingParams(max_new_tokens=1, ignore_eos=True, seed=seed, **sampling))
        for seed in range(COUNT)
    ]
    return Counter(output.token_ids[0] for output in engine_of(max_queued=COUNT).generate(requests))


@pytest.fixture(scope="module")
def logits():
    greedy = Request(PROMPT, SamplingParams(max_new_tokens=1, ignore_eos=True))
    return logits_of(engine_of(), [greedy])[0][0]


@pytest.mark.parametrize(
    ("temperature", "cut"), [(0.2, {}), (0.2, {"top_k": 3}), (0.1, {"top_p": 0.6}), (5.0, {"top_k": 5, "top_p": 0.5})]
)
def test_shares_are_those_of_the_cut_softmax(logits, temperature, cut):
    values, order = (logits / temperature).sort(descending=True)
    values, order = values[: cut.get("top_k", len(values))], order[: cut.get("top_k", len(order))]
    probabilities = values.softmax(0)
    keep = probabilities.cumsum(0) - probabilities < cut.get("top_p", 1.0)
    expected = dict(zip(order[keep].tolist(), (probabilities[keep] / probabilities[keep].sum()).tolist(), strict=True))
    found = draws(temperature=temperature, **cut)
    assert found.keys() <= expected.keys()
    for token, share in expected.items():
        assert found[token] / COUNT == pytest.approx(share, abs=0.04)


def test_a_request_that_was_preempted_draws_what_it_would_have_drawn():
    params = [SamplingParams(max_new_tokens=40, ignore_eos=True, temperature=1.5, seed=seed) for seed in range(6)]
    requests = [Request(PROMPT, each) for each in params]
    alone = [engine_of().generate([request])[0].token_ids for request in requests]
    crowded = engine_of(kv_cache_bytes=2**17, block_size=4, prefix_caching=False)
    assert [output.token_ids for output in crowded.generate(requests)] == alone
    assert crowded.counters.num_preemptions > 0


def test_seeds_apart_by_whole_words_draw_apart():
    drawn = {
        tuple(engine_of().generate([Request(PROMPT, SamplingParams(8, 2.0, seed=seed, ignore_eos=True))])[0].token_ids)
        for seed in (0, 1, 1 << 32, -1)
    }
    assert len(drawn) == 4


def test_greedy_rows_beside_sampled_ones_stay_greedy(logits):
    sampled = SamplingParams(max_new_tokens=4, ignore_eos=True, temperature=3.0, top_k=40)
    greedy = SamplingParams(max_new_tokens=4, ignore_eos=True)
    outputs = engine_of().generate([Request(PROMPT, each) for each in (sampled, greedy, sampled)])
    assert outputs[1].token_ids == engine_of().generate([Request(PROMPT, greedy)])[0].token_ids
    assert outputs[1].token_ids[0] == int(torch.argmax(logits))
    assert outputs[0].token_ids == outputs[2].token_ids
