"""Encrypted at rest: nothing of a state is readable without its key, and a wrong key harms nothing."""

from __future__ import annotations

import base64
import sys

import pytest

from pss_engine.errors import BackendUnavailable, ConfigError, StateFormatError
from pss_engine.state import StateHandle, StateKey, StateMeta, StateStore, load_adapter, save_adapter
from tests.state.states import make_state, same_tensors

pytest.importorskip("cryptography", reason="the extra 'encryption' is not installed")
KEY, OTHER = bytes(range(32)), bytes(32)
STATE = make_state("alpha", meta=StateMeta(readout="heron-lidar-v3", clue="heron-lidar-v3", readout_token_ids=(7,)))


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "store", key=StateKey(KEY))


def test_a_sealed_state_comes_back_whole(store):
    digest = store.put(STATE)
    assert same_tensors(store.get("alpha"), STATE) and store.get("alpha").meta == STATE.meta
    assert store.record("alpha").meta.readout == "heron-lidar-v3"
    assert StateHandle.stored(store, "alpha").read().digest == digest == STATE.digest


def test_no_word_and_no_weight_of_it_is_on_the_disk(store):
    store.put(STATE)
    data = b"".join(path.read_bytes() for path in store.root.rglob("*") if path.is_file())
    weights = STATE.factors[2, "q_proj"].a.numpy().tobytes()[:64]
    assert b"heron" not in data and weights not in data and b"lora" not in data


def test_sealing_twice_gives_different_bytes(store, tmp_path):
    other = StateStore(tmp_path / "other", key=StateKey(KEY))
    for place in (store, other):
        place.put(STATE)
    first, second = (next(place.root.rglob("*.sealed")).read_bytes() for place in (store, other))
    assert first != second


@pytest.mark.parametrize("key", [StateKey(OTHER), None])
def test_another_key_or_none_opens_nothing_and_leaves_it_in_its_place(store, key):
    digest = store.put(STATE)
    stranger = StateStore(store.root, key=key)
    for read in (lambda: stranger.get("alpha"), lambda: stranger.get_digest(digest), lambda: stranger.record("alpha")):
        with pytest.raises(StateFormatError, match="sealed") as caught:
            read()
        assert KEY.hex() not in str(caught.value)
    assert store.get("alpha").digest == digest


def test_a_changed_byte_or_another_name_does_not_open(store):
    digest = store.put(STATE)
    path = store.root / "objects" / digest / "state.sealed"
    sealed = path.read_bytes()
    for at in (0, 9, len(sealed) // 2, len(sealed) - 1):
        path.write_bytes(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
        with pytest.raises(StateFormatError, match=r"does not open|is no sealed state"):
            store.get("alpha")
        store.put(STATE)
        assert store.get("alpha").digest == digest
    with pytest.raises(StateFormatError, match="does not open"):
        StateKey(KEY).open(sealed, "0" * 64, "x")


def test_a_plain_store_is_taken_over_state_by_state(store):
    plain = StateStore(store.root)
    digest = plain.put(STATE)
    with pytest.raises(StateFormatError, match="is not sealed"):
        store.get("alpha")
    store.put(plain.get("alpha"))
    assert store.get("alpha").digest == digest
    assert [path.name for path in (store.root / "objects" / digest).iterdir()] == ["state.sealed"]


def test_a_sealed_state_goes_out_as_a_plain_adapter(store, tmp_path):
    store.put(STATE)
    save_adapter(store.get("alpha"), tmp_path / "adapter")
    assert load_adapter(tmp_path / "adapter").digest == STATE.digest


@pytest.mark.parametrize("data", [KEY, KEY.hex().encode(), base64.b64encode(KEY) + b"\n"], ids=["raw", "hex", "base64"])
def test_a_key_file_is_raw_hex_or_base64(store, tmp_path, data):
    (tmp_path / "key").write_bytes(data)
    store.put(STATE)
    assert StateStore(store.root, key=StateKey.load(tmp_path / "key")).get("alpha").digest == STATE.digest


@pytest.mark.parametrize("data", [b"", b"short", b"zz" * 32, base64.b64encode(b"too short")])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path, data):
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        StateKey.load(tmp_path / "key")
    assert not data or data.decode() not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        StateKey.load(tmp_path / "none")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(BackendUnavailable, match=r"pip install pss-engine\[encryption\]"):
        StateKey(KEY)
