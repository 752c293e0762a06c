"""A handle names a state before it is loaded, and what it loads is that state or an error of this session alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from pss_engine.errors import SessionNotFound, StateFormatError
from pss_engine.state import StateHandle, StateMeta, StateStore
from tests.state.slot_checks import LONG, hold, load, make_slots
from tests.state.states import make_state, same_tensors


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "store")


def test_a_handle_of_a_state_in_memory_is_that_state():
    state = make_state(meta=StateMeta(readout="topic", readout_token_ids=(7,)))
    handle = StateHandle.of(state)
    assert (handle.digest, handle.session_id, handle.num_bytes) == (state.digest, "alpha", state.num_bytes)
    assert handle.read() is state and handle.meta.readout_token_ids == (7,)


def test_a_stored_state_is_described_without_reading_its_tensors(store):
    state = make_state("alpha", meta=StateMeta(model_fingerprint="f" * 64, readout="topic", readout_token_ids=(7,)))
    store.put(state)
    store.put(state, "beta")
    tensors = store.path("beta") / "adapter_model.safetensors"
    aside = tensors.rename(tensors.with_name("aside"))
    handle = StateHandle.stored(store, "beta")
    aside.rename(tensors)
    assert (handle.digest, handle.session_id, handle.num_bytes) == (state.digest, "beta", state.num_bytes)
    assert handle.meta == state.meta
    back = handle.read()
    assert same_tensors(back, state) and back.session_id == "beta" and back.meta == state.meta


def test_a_handle_keeps_the_version_it_was_made_of(store):
    old = store.put(make_state("alpha"))
    handle = StateHandle.stored(store, "alpha")
    new = store.put(make_state("alpha", seed=1))
    assert handle.read().digest == old != new == StateHandle.stored(store, "alpha").digest


def test_an_unknown_session_has_no_handle(store):
    with pytest.raises(SessionNotFound, match="session alpha: no state"):
        StateHandle.stored(store, "alpha")


def test_another_state_than_the_one_asked_for_is_refused():
    handle = replace(StateHandle.of(make_state()), load=lambda: make_state(seed=1))
    with pytest.raises(StateFormatError, match=f"{handle.digest[:16]} was asked for"):
        handle.read()


@pytest.mark.parametrize(
    ("field", "value"), [("num_bytes", 3), ("num_bytes", "3"), ("digest", "0" * 64), ("readout", 3), ("readout", "x")]
)
def test_a_description_that_was_edited_is_quarantined(store, field, value):
    store.put(make_state("alpha"))
    path = store.path("alpha") / "pss_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(StateFormatError, match=r"moved to .*quarantine"):
        StateHandle.stored(store, "alpha").read()


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("damage", ["deleted", "edited"])
def test_a_damaged_file_fails_its_session_alone_and_is_quarantined(store, damage, unified):
    for session_id, seed in (("alpha", 0), ("beta", 1)):
        store.put(make_state(session_id, seed=seed))
    broken, sound = (StateHandle.stored(store, session_id) for session_id in ("alpha", "beta"))
    folder = store.path("alpha")
    tensors = folder / "adapter_model.safetensors"
    if damage == "deleted":
        tensors.unlink()
    else:
        data = bytearray(tensors.read_bytes())
        data[-1] ^= 1
        tensors.write_bytes(bytes(data))
    slots = make_slots(unified=unified)
    assert slots.acquire(broken) is None and slots.acquire(sound) is None
    while slots.num_loading:
        assert slots.wait(LONG)
    assert slots.acquire(sound) is not None
    with pytest.raises(StateFormatError, match=r"moved to .*quarantine"):
        slots.acquire(broken)
    assert not folder.exists() and len(list((store.root / "quarantine").iterdir())) == 1
    slots.check()


def test_a_state_that_was_removed_fails_when_it_is_loaded(store):
    store.put(make_state("alpha"))
    handle = StateHandle.stored(store, "alpha")
    slots = make_slots(num_slots=1)
    load(slots, handle)
    shutil.rmtree(store.root)
    assert hold(slots, handle).slot == 0, "a resident state needs no file"
    other = make_slots(num_slots=1)
    assert other.acquire(handle) is None and other.wait(LONG)
    with pytest.raises(StateFormatError, match="not in"):
        other.acquire(handle)
