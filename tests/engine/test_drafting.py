"""Drafts come from what the state and the query say; accepted or not, the tokens are those of plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.engine.drafting import Drafter
from tests.engine.adapters import random_state
from tests.tiny import tiny_model


def test_the_first_proposal_is_the_beginning_of_the_readout():
    assert Drafter([[5, 6, 7, 8], [1, 2]], 3).propose([], 10) == [5, 6, 7]


def test_the_longest_suffix_wins_over_the_first_source():
    drafter = Drafter([[1, 2, 9], [0, 1, 2, 3, 4]], 2)
    assert drafter.propose([0, 1, 2], 10) == [3, 4]
    assert drafter.propose([7, 1, 2], 10) == [9]


def test_generated_tokens_are_a_source_too():
    assert Drafter([[1]], 3).propose([8, 9, 4, 8, 9], 10) == [4, 8, 9]


def test_nothing_matches_nothing_is_proposed():
    assert Drafter([[1, 2, 3]], 4).propose([7], 10) == []
    assert Drafter([], 4).propose([], 10) == []


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=3),
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(0, 6),
)
def test_a_proposal_is_a_piece_of_a_source_within_the_limit(sources, generated, limit):
    proposal = Drafter(sources, 4).propose(generated, limit)
    assert len(proposal) <= min(limit, 4)
    texts = [tuple(source) for source in [*sources, generated]]
    assert not proposal or any(
        tuple(proposal) == text[i : i + len(proposal)] for text in texts for i in range(len(text))
    )


def engine_of(states, max_draft_tokens, **config):
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**22, max_draft_tokens=max_draft_tokens, **config))
    for state in states:
        engine.add_state(state)
    return engine


def with_readout(state, token_ids):
    return replace(state, meta=replace(state.meta, readout="recorded", readout_token_ids=tuple(token_ids)))


PARAMS = SamplingParams(max_new_tokens=20, ignore_eos=True)
PROMPTS = ["which one", "the other question", "x"]


def requests(sessions, params=PARAMS):
    return [Request(PROMPTS[i % 3], params, session=session) for i, session in enumerate(sessions)]


@pytest.fixture(scope="module")
def states():
    """Two states: what one says to the first prompt is its readout, the other's readout is of no use."""
    plain = [random_state(tiny_model(), f"s{i}", seed=i) for i in range(2)]
    said = engine_of(plain, 0).generate(requests(["s0"]))[0].token_ids
    return [with_readout(plain[0], said), with_readout(plain[1], [3, 4, 5, 6] * 5)]


@pytest.mark.parametrize("max_draft_tokens", [1, 3, 8, 30])
@pytest.mark.parametrize("max_batched_tokens", [8, 64])
def test_tokens_are_those_of_plain_decoding(states, max_draft_tokens, max_batched_tokens):
    sessions = ["s0", None, "s1", "s0", "s1"]
    plain = engine_of(states, 0).generate(requests(sessions))
    limits = {"max_batched_tokens": max_batched_tokens, "max_num_seqs": 8, "block_size": 4}
    engine = engine_of(states, max_draft_tokens, **limits)
    drafted = engine.generate(requests(sessions))
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    assert engine.counters.num_accepted_tokens > 0
    assert engine.counters.num_steps < 5 + sum(len(o.token_ids) for o in plain)
    engine.check()


def test_a_right_draft_saves_its_steps_and_is_counted(states):
    engine = engine_of(states, 9)
    output = engine.generate(requests(["s0"]))[0]
    assert output.drafts.num_steps == 2  # 1 + 9 tokens a step
    assert output.drafts.accepted_tokens == 18 == engine.counters.num_accepted_tokens
    assert output.drafts.num_steps + output.drafts.accepted_tokens == len(output.token_ids)


def test_rejected_drafts_are_not_held_against_the_call(states):
    plain = engine_of(states, 0).generate(requests(["s1"]))[0]
    drafted = engine_of(states, 8).generate(requests(["s1"]))[0]
    assert drafted.usage.kv_peak_bytes == plain.usage.kv_peak_bytes


def test_base_rows_and_sampled_rows_are_not_drafted(states):
    engine = engine_of(states, 8)
    sampled = replace(PARAMS, temperature=1.0, seed=3)
    engine.generate([*requests([None]), *requests(["s0"], sampled)])
    assert engine.counters.num_drafted_tokens == 0


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5])
def test_a_draft_never_passes_the_limit_of_the_request(states, max_new_tokens):
    output = engine_of(states, 8).generate(requests(["s0"], replace(PARAMS, max_new_tokens=max_new_tokens)))[0]
    assert (len(output.token_ids), output.finish_reason) == (max_new_tokens, "length")


def test_a_stop_inside_a_draft_ends_there(states):
    plain = engine_of(states, 0).generate(requests(["s0"]))[0]
    stop = (plain.text[4:7],)
    ends = [engine_of(states, n).generate(requests(["s0"], replace(PARAMS, stop=stop)))[0] for n in (0, 8)]
    assert ends[0].token_ids == ends[1].token_ids
    assert ends[0].text == ends[1].text == plain.text[: plain.text.index(stop[0])]
