"""A row is one contiguous buffer that holds a state exactly, rounded once, and nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch

from pss_engine.errors import ConfigError, StateFormatError
from pss_engine.state import SessionState, StateLayout
from pss_engine.state.rows import StateRows
from tests.state.states import ALL_KEYS, HIDDEN, KV, QV_KEYS, SHAPE, TARGETS, make_state, make_tensors


def test_a_row_is_contiguous_and_its_parts_are_aligned_and_apart():
    layout = StateLayout(SHAPE, max_rank=5)
    rows = StateRows(layout, 3)
    assert rows.rows.shape == (3, layout.numel) and rows.rows.is_contiguous()
    spans = []
    for key in ALL_KEYS:
        in_features, out_features = TARGETS[key[1]]
        a, b = layout.split(rows.rows, key)
        assert a.shape == (3, 5, in_features) and b.shape == (3, out_features, 5)
        assert a[1].is_contiguous() and b[1].is_contiguous()
        for part in (a, b):
            begin = part[1].data_ptr() - rows.rows[1].data_ptr()
            assert begin % 64 == 0
            spans.append((begin, begin + part[1].numel() * 4))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= layout.numel * 4 and layout.row_bytes == layout.numel * 4 + 8 * len(ALL_KEYS)


def test_a_packed_state_is_its_factors_and_its_scaling_apart():
    uneven = {key: 1 + index for index, key in enumerate(QV_KEYS)}
    state = make_state(keys=QV_KEYS, rank=uneven, alpha=3.0)
    layout = StateLayout(SHAPE, max_rank=8)
    row, scaling = torch.full((layout.numel,), torch.nan), torch.full((layout.num_targets,), torch.nan)
    ranks = torch.full((layout.num_targets,), 7, dtype=torch.int32)
    layout.pack(state, row, scaling, ranks)
    for key, index in layout.index.items():
        a, b = (part[0] for part in layout.split(row[None], key))
        pair = state.factors.get(key)
        rank = pair.rank if pair else 0
        assert int(ranks[index]) == rank and float(scaling[index]) == torch.tensor(pair.scaling if pair else 0.0)
        assert not a[rank:].any() and not b[:, rank:].any()
        if pair:
            assert torch.equal(a[:rank], pair.a) and torch.equal(b[:, :rank], pair.b)
    num_numbers = sum(pair.a.numel() + pair.b.numel() for pair in state.factors.values())
    assert row.count_nonzero() == num_numbers, "nothing is left between and behind the factors"


def test_narrow_rows_round_once():
    state, layout = make_state(), StateLayout(SHAPE, max_rank=4, dtype=torch.bfloat16)
    rows = StateRows(layout, 1)
    rows.write(0, state)
    view, pair = rows.views[2, "k_proj"], state.factors[2, "k_proj"]
    assert torch.equal(view.lora_a[0], pair.a.bfloat16()) and torch.equal(view.lora_b[0], pair.b.bfloat16())
    assert layout.row_bytes == layout.numel * 2 + 8 * len(ALL_KEYS)


def test_rows_of_whole_numbers_have_their_steps_in_the_scaling():
    state, layout = make_state(alpha=3.0), StateLayout(SHAPE, max_rank=4, dtype=torch.int8)
    rows = StateRows(layout, 1)
    rows.write(0, state)
    assert layout.row_bytes == layout.numel + 8 * len(ALL_KEYS)
    for key, pair in state.factors.items():
        view = rows.views[key]
        found = view.scaling[0] * (view.lora_b[0].float() @ view.lora_a[0].float())
        wanted = pair.scaling * (pair.b.float() @ pair.a.float())
        # a step is 1 / 127 of the largest number of a factor, and half of it the most that rounding changes
        bound = pair.scaling * pair.a.abs().max() * pair.b.abs().max() * pair.rank / 100
        assert (found - wanted).abs().max() <= bound


def test_a_factor_of_zeros_stays_zero_in_whole_numbers():
    tensors = {key: (a, torch.zeros_like(b)) for key, (a, b) in make_tensors(QV_KEYS).items()}
    rows = StateRows(StateLayout(SHAPE, max_rank=4, dtype=torch.int8), 1)
    rows.write(0, SessionState.from_tensors("s", tensors, 8.0))
    for key in QV_KEYS:
        assert not rows.views[key].lora_b.any() and rows.views[key].scaling.isfinite().all()


def test_a_state_that_is_being_trained_is_packed_without_its_gradient():
    tensors = {key: (a.requires_grad_(), b) for key, (a, b) in make_tensors(QV_KEYS).items()}
    state = SessionState.from_tensors("s", tensors, 8.0)
    rows = StateRows(StateLayout(SHAPE, max_rank=4), 1)
    rows.write(0, state)
    assert not rows.rows.requires_grad


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (make_state(rank=9), "rank 9 is over max_rank 8"),
        (make_state(keys=[(1, "q_proj")]), r"layer 1 is outside the session layers 2\.\.3"),
        (make_state(keys=[(4, "q_proj")]), "layer 4 is outside"),
        (
            SessionState.from_tensors("x", {(2, "q_proj"): (torch.zeros(4, 64), torch.zeros(HIDDEN, 4))}, 8.0),
            "lora_A in_features is 64, the model's q_proj has 32",
        ),
        (
            SessionState.from_tensors("x", {(2, "qkv_proj"): (torch.zeros(4, HIDDEN), torch.zeros(KV, 4))}, 8.0),
            "module qkv_proj is not in this model",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state, match):
    with pytest.raises(StateFormatError, match=match):
        StateLayout(SHAPE, max_rank=8).check(state)


def test_a_rank_of_nothing_is_a_mistake():
    with pytest.raises(ConfigError, match="max_rank=0: at least 1"):
        StateLayout(SHAPE, max_rank=0)
