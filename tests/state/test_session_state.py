"""What a state is, what its digest covers, and what it must pass before it is written."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pss_engine.errors import CapacityError, ConfigError, StateFormatError
from pss_engine.state import LoraFactors, SessionState, StateMeta, StateShape
from pss_engine.state.verify import verify
from tests.state.states import ALL_KEYS, QV_KEYS, SHAPE, TARGETS, make_state, make_tensors


def changed(state, key, side, value):
    tensors = {k: (pair.a.clone(), pair.b.clone()) for k, pair in state.factors.items()}
    tensors[key]["AB".index(side)].view(-1)[0] = value
    return SessionState.from_tensors(state.session_id, tensors, 8.0, meta=state.meta)


def test_a_state_knows_its_size_and_what_it_touches():
    state = make_state(keys=QV_KEYS, rank={k: 4 if k[0] == 2 else 3 for k in QV_KEYS}, dtype=torch.bfloat16)
    assert (state.layers, state.modules, state.max_rank) == ((2, 3), ("q_proj", "v_proj"), 4)
    assert state.num_bytes == 2 * sum(pair.a.numel() + pair.b.numel() for pair in state.factors.values())
    assert state.describe()["dtypes"] == ["BF16"]


def test_scaling_is_alpha_over_rank_or_over_its_root():
    tensors = make_tensors(QV_KEYS, rank=3)
    assert SessionState.from_tensors("s", tensors, 10).factors[2, "q_proj"].scaling == 10 / 3
    rooted = SessionState.from_tensors("s", tensors, 10, use_rslora=True)
    assert rooted.factors[2, "q_proj"].scaling == 10 / math.sqrt(3)


def test_equal_content_has_an_equal_digest_whoever_owns_it_and_whenever_it_was_made():
    state = make_state("alpha", meta=StateMeta(created_at="2026-01-01T00:00:00Z"))
    other = make_state("beta", meta=StateMeta(created_at="2027-01-01T00:00:00Z", seed=5))
    assert state.digest == other.digest == state.for_session("gamma").digest
    shuffled = SessionState.from_tensors("alpha", dict(reversed(make_tensors().items())), 8.0)
    assert shuffled.digest == state.digest


def test_everything_that_decides_the_output_changes_the_digest():
    state = make_state()
    variants = [
        make_state(seed=1),
        make_state(alpha=16.0),
        make_state(keys=QV_KEYS),
        make_state(dtype=torch.bfloat16),
        SessionState.from_tensors("alpha", make_tensors(), 8.0, use_rslora=True),
        SessionState.from_tensors("alpha", make_tensors(), {k: 16.0 if k == ALL_KEYS[0] else 8.0 for k in ALL_KEYS}),
        changed(state, (3, "v_proj"), "B", 0.5),
        make_state(meta=StateMeta(readout="topic: rivers")),
        make_state(meta=StateMeta(readout_token_ids=(1, 2))),
        make_state(meta=StateMeta(model_fingerprint="m")),
        make_state(meta=StateMeta(tokenizer_fingerprint="t")),
    ]
    assert len({state.digest, *(variant.digest for variant in variants)}) == len(variants) + 1


def test_a_state_that_contradicts_itself_cannot_be_made():
    state = make_state()
    pair = state.factors[2, "q_proj"]
    with pytest.raises(StateFormatError, match=r"scaling 3.0, the configuration says 4 and 2.0"):
        replace(state, factors={**state.factors, (2, "q_proj"): LoraFactors(pair.a, pair.b, 3.0)})
    with pytest.raises(StateFormatError, match=r"A \[3, 32\] and B \[32, 4\]"):
        replace(state, factors={**state.factors, (2, "q_proj"): LoraFactors(pair.a[:3], pair.b, 2.0)})
    with pytest.raises(StateFormatError, match="lm_head: no such module; choices: q_proj"):
        replace(state, factors={(2, "lm_head"): pair})
    with pytest.raises(StateFormatError, match=r"float64.*choices: F32, BF16, F16"):
        replace(state, factors={(2, "q_proj"): LoraFactors(pair.a.double(), pair.b.double(), 2.0)})
    with pytest.raises(StateFormatError, match="no factors"):
        replace(state, factors={})
    with pytest.raises(ConfigError, match=r"at least|needed"):
        SessionState.from_tensors("alpha", {}, 8.0)


@pytest.mark.parametrize(
    "session_id", ["", "..", ".a", "A", "a/b", "a\\b", "/etc", "a\0", "a\n", "é", "a" * 129, "-a", "a b"]
)
def test_a_session_id_that_cannot_name_a_folder_is_refused(session_id):
    with pytest.raises(ConfigError, match=r"session id .*must be 1 to 128"):
        make_state(session_id)


@pytest.mark.parametrize("session_id", ["a", "0", "a.b-c_d", "a..b", "a" * 128])
def test_other_session_ids_are_fine(session_id):
    assert make_state(session_id).session_id == session_id


def test_a_sound_state_passes_all_checks():
    meta = StateMeta(model_fingerprint="m1", tokenizer_fingerprint="t1")
    state = make_state(meta=meta)
    state.check(
        shape=SHAPE,
        max_rank=4,
        max_bytes=state.num_bytes,
        dtype=torch.float32,
        model_fingerprint="m1",
        tokenizer_fingerprint="t1",
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_named(value):
    state = changed(make_state(), (3, "up_proj"), "A", value)
    with pytest.raises(
        StateFormatError, match=r"layers\.3\.mlp\.up_proj\.lora_A\.weight has 1 numbers that are not finite"
    ):
        verify(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_among_many_is_found_wherever_it_stands(dtype, value):
    for at in range(0, 150, 7):
        a = torch.linspace(-60000, 60000, 150).to(dtype)
        a[at] = value
        state = SessionState.from_tensors("s", {(2, "q_proj"): (a[None], torch.zeros(8, 1, dtype=dtype))}, 1.0)
        with pytest.raises(StateFormatError, match="has 1 numbers"):
            verify(state)


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"max_rank": 3}, "rank 4 is over max_rank 3"),
        ({"dtype": torch.bfloat16}, "is torch.float32, torch.bfloat16 is needed"),
        (
            {"shape": StateShape(3, TARGETS, 2)},
            r"layer 3 is outside the session layers 2\.\.2 of this model of 3 layers",
        ),
        ({"shape": StateShape(4, TARGETS, 3)}, r"layer 2 is outside the session layers 3\.\.3"),
        ({"shape": StateShape(4, {**TARGETS, "up_proj": (32, 64)}, 2)}, "lora_B out_features is 48, .*up_proj has 64"),
        (
            {"shape": StateShape(4, {**TARGETS, "down_proj": (64, 32)}, 2)},
            "lora_A in_features is 48, .*down_proj has 64",
        ),
        ({"shape": StateShape(4, {"qkv_proj": (32, 64)}, 2)}, "is not in this model; choices: qkv_proj"),
        ({"model_fingerprint": "m2"}, "written with model m1, the model in use is m2"),
        ({"tokenizer_fingerprint": "t2"}, "written with tokenizer t1, the tokenizer in use is t2"),
    ],
)
def test_a_state_for_something_else_is_refused_with_both_values(limits, match):
    state = make_state(meta=StateMeta(model_fingerprint="m1", tokenizer_fingerprint="t1"))
    with pytest.raises(StateFormatError, match=match):
        state.check(**limits)


def test_a_state_over_its_budget_says_both_sizes():
    state = make_state()
    with pytest.raises(CapacityError, match=f"{state.num_bytes} bytes needed, 100 bytes free"):
        state.check(max_bytes=100)


def test_an_unknown_origin_is_left_to_the_shape_check():
    make_state().check(model_fingerprint="m2", tokenizer_fingerprint="t2", shape=SHAPE)


def test_a_shape_names_its_mistakes():
    with pytest.raises(ConfigError, match=r"\['lm_head'\]; choices: q_proj"):
        StateShape(4, {"lm_head": (1, 1)})
    with pytest.raises(ConfigError, match=r"first_session_layer=4: must be in 0\.\.3"):
        StateShape(4, TARGETS, 4)


def test_meta_survives_json_and_refuses_what_it_does_not_know():
    meta = StateMeta("m", "t", "tiny", {"lr": 1e-4, "steps": [1, 2]}, 91, "2026-01-01", 12, "clue", (3, 4), "c", "n")
    assert StateMeta.from_json(meta.to_json(), "x") == meta
    for field, value in (("seed", "91"), ("readout", None), ("readout_token_ids", [1.5]), ("writer", 3), ("extra", 1)):
        with pytest.raises(StateFormatError, match=f"x: .*{field}"):
            StateMeta.from_json({**meta.to_json(), field: value}, "x")
    with pytest.raises(StateFormatError, match="format_version is 2, this release reads 1"):
        StateMeta.from_json({**meta.to_json(), "format_version": 2}, "x")
