"""Precisions: smaller files that give the state back to the bit, and how far they are from what was learned."""

from __future__ import annotations

import json

import pytest
import torch

from pss_engine.errors import StateFormatError
from pss_engine.state import SessionState, StateMeta, StateStore, load_adapter, save_adapter
from pss_engine.state.precision import PRECISIONS, initial_a, rounded
from tests.state.states import ALL_KEYS, TARGETS, same_tensors

SEED = 5


def learned(rank=4):
    """Factors as learning leaves them: close to where they began."""
    shapes = {key: (rank, TARGETS[key[1]][0]) for key in ALL_KEYS}
    generator = torch.Generator().manual_seed(0)
    return {
        key: (
            a + 6e-3 * torch.randn(a.shape, generator=generator),
            6e-3 * torch.randn(TARGETS[key[1]][1], rank, generator=generator),
        )
        for key, a in initial_a(shapes, SEED).items()
    }


def state_in(precision, tensors=None):
    meta = StateMeta(seed=SEED, writer={"precision": precision})
    return SessionState.from_tensors("alpha", rounded(tensors or learned(), precision, SEED), 8.0, meta=meta)


def size(folder):
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("precision", ["bf16", *PRECISIONS])
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_a_stored_state_comes_back_to_the_bit(tmp_path, precision, rank):
    store, state = StateStore(tmp_path), state_in(precision, learned(rank))
    store.put(state)
    back = store.get("alpha")
    assert same_tensors(back, state) and back.digest == state.digest
    assert rounded(back.tensors(), precision, SEED).keys() == back.factors.keys()
    store.put(back, "beta")  # what was read is written again as it was
    assert store.head("beta") == state.digest


def test_files_get_smaller_and_errors_larger(tmp_path):
    exact, sizes, errors = learned(rank=32), {}, {}
    for precision in ("fp16_residual", "bf16", "int8", "int4"):
        store, state = StateStore(tmp_path / precision), state_in(precision, exact)
        store.put(state)
        sizes[precision] = size(store.path("alpha"))
        errors[precision] = max(float((state.factors[key].b.float() - b).abs().max()) for key, (_, b) in exact.items())
    assert sizes["fp16_residual"] > sizes["bf16"] > sizes["int8"] > sizes["int4"]
    assert errors["fp16_residual"] < errors["bf16"] < errors["int8"] < errors["int4"] < 2e-3


def test_a_residual_keeps_what_was_learned_in_a_better_than_rounding_does():
    exact = learned()

    def error(precision):
        return max(
            float((pair[0].float() - exact[key][0]).abs().max())
            for key, pair in rounded(exact, precision, SEED).items()
        )

    assert error("int8") < error("bf16")


def test_a_packed_state_goes_out_as_a_plain_adapter(tmp_path):
    state = state_in("int4")
    save_adapter(state, tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    assert same_tensors(load_adapter(tmp_path / "adapter"), state)


@pytest.mark.parametrize("damage", ["byte", "precision", "missing", "module"])
def test_a_damaged_packed_state_is_refused(tmp_path, damage):
    store = StateStore(tmp_path)
    store.put(state_in("int8"))
    folder = store.path("alpha")
    path = folder / "factors.safetensors"
    if damage == "byte":
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    elif damage == "missing":
        path.unlink()
    else:
        file = folder / ("pss_state.json" if damage == "precision" else "adapter_config.json")
        content = json.loads(file.read_text())
        if damage == "precision":
            content["writer"]["precision"] = "int2"
        else:
            content["target_modules"] = ["q_proj", "nothing"]
        file.write_text(json.dumps(content))
    with pytest.raises(StateFormatError):
        store.get("alpha")
