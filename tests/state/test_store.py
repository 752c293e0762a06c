"""The store keeps the last good version whatever happens to the files, the disk or the names."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading

import pytest

from pss_engine.errors import CapacityError, ConfigError, SessionNotFound, StateFormatError
from pss_engine.state import SessionState, StateMeta, StateStore, load_adapter
from pss_engine.state import files as state_files
from tests.state.states import QV_KEYS, REPOSITORY, make_state, nan_tensors, same_tensors


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "store")


def files_of(store):
    return sorted(str(p.relative_to(store.root)) for p in store.root.rglob("*") if p.is_file() and p.name != ".lock")


def damage(store, digest, name="adapter_model.safetensors", at=-1):
    path = store.root / "objects" / digest / name
    data = bytearray(path.read_bytes())
    data[at] ^= 0x01
    path.write_bytes(bytes(data))


def test_a_state_comes_back_by_session_and_by_digest(store):
    state = make_state("alpha", meta=StateMeta(seed=91, readout="topic", readout_token_ids=(7,)))
    digest = store.put(state)
    for back in (store.get("alpha"), store.get_digest(digest), StateStore(store.root).get("alpha")):
        assert same_tensors(back, state) and back.meta == state.meta and back.digest == digest == state.digest


def test_a_session_is_in_the_store_once_it_has_a_head(store):
    assert "alpha" not in store and "../alpha" not in store and 3 not in store
    digest = store.put(make_state("alpha"))
    assert "alpha" in store and "../store/sessions/alpha" not in store
    assert store.head("alpha") == digest


def test_an_object_is_a_peft_folder(store):
    store.put(make_state("alpha"))
    assert sorted(p.name for p in store.path("alpha").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "pss_state.json",
    ]
    assert load_adapter(store.path("alpha")).session_id == "alpha"


def test_equal_states_share_one_object_under_their_own_names(store):
    digest = store.put(make_state("alpha"))
    digests = [store.put(make_state("beta")), store.put(make_state("alpha"), "gamma")]
    assert digests == [digest, digest]
    assert len(list((store.root / "objects").iterdir())) == 1
    assert [store.get(name).session_id for name in store.sessions()] == ["alpha", "beta", "gamma"]


def test_a_new_version_replaces_the_old_which_stays_until_pruned(store):
    old = store.put(make_state("alpha"))
    new = store.put(make_state("alpha", seed=1))
    assert store.get("alpha").digest == new and store.get_digest(old).digest == old
    num_removed = store.prune()
    assert num_removed == 1
    with pytest.raises(StateFormatError, match=f"state {old[:16]}: not in"):
        store.get_digest(old)
    assert store.get("alpha").digest == new


def test_an_unknown_session_names_known_ones(store):
    with pytest.raises(SessionNotFound, match=r"session alpha: no state in .*; 0 known: none"):
        store.get("alpha")
    for index in range(7):
        store.put(make_state(f"s{index}", keys=QV_KEYS))
    for ask in (store.get, store.head, store.path, store.info, store.delete):
        with pytest.raises(SessionNotFound, match=r"7 known: s0, s1, s2, s3, s4, \.\.\."):
            ask("alpha")


def test_delete_removes_the_session_and_what_only_it_used(store):
    store.put(make_state("alpha"))
    shared = store.put(make_state("alpha", seed=1))
    store.put(make_state("beta", seed=1))
    store.delete("alpha")
    assert store.sessions() == ["beta"] and store.get("beta").digest == shared
    store.delete("beta")
    assert files_of(store) == []


def test_info_says_what_is_stored(store):
    state = make_state("alpha", meta=StateMeta(seed=91))
    store.put(state)
    info = store.info("alpha")
    assert (info["num_bytes"], info["layers"], info["meta"]["seed"]) == (state.num_bytes, [2, 3], 91)
    assert info["path"] == str(store.path("alpha"))


BAD_IDS = ["", ".", "..", "../x", "a/b", "a\\b", "..\\x", "/etc/passwd", "a\0b", "a\n", "ÿ", "a" * 129, "A", ".tmp"]


@pytest.mark.parametrize("session_id", BAD_IDS)
def test_a_name_that_could_leave_the_store_is_refused_everywhere(store, session_id):
    store.put(make_state("alpha"))
    before = files_of(store)
    for use in (store.get, store.path, store.info, store.delete, lambda name: store.put(make_state(), name)):
        with pytest.raises(ConfigError, match="session id") as caught:
            use(session_id)
        assert "\n" not in str(caught.value)
    assert files_of(store) == before


@pytest.mark.parametrize("digest", ["", "..", "../../x", "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_a_digest_that_is_none_is_refused(store, digest):
    store.put(make_state("alpha"))
    with pytest.raises(StateFormatError, match="64 hexadecimal digits"):
        store.get_digest(digest)


@pytest.mark.parametrize("what", ["sessions", "sessions/alpha", "sessions/alpha/HEAD", "objects", "object", "tensors"])
def test_symbolic_links_in_the_store_are_refused(store, tmp_path, what):
    digest = store.put(make_state("alpha"))
    names = {"object": f"objects/{digest}", "tensors": f"objects/{digest}/adapter_model.safetensors"}
    path = store.root / names.get(what, what)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateFormatError, match="symbolic link"):
        store.get("alpha")
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("adapter_model.safetensors", -1),
        ("adapter_model.safetensors", 0),
        ("adapter_config.json", 0),
        ("pss_state.json", 0),
    ],
)
def test_a_damaged_object_is_quarantined_and_only_its_session_fails(store, name, at):
    digest = store.put(make_state("alpha"))
    store.put(make_state("beta", seed=1))
    damage(store, digest, name, at)
    with pytest.raises(StateFormatError, match=r"moved to .*quarantine") as caught:
        store.get("alpha")
    assert "\n" not in str(caught.value)
    assert [p.name for p in (store.root / "quarantine").iterdir()] == [f"{digest}-0"]
    with pytest.raises(StateFormatError, match="in quarantine after a failed check"):
        store.get("alpha")
    assert store.get("beta").session_id == "beta"
    store.put(make_state("alpha"))
    assert store.get("alpha").digest == digest


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_missing_or_truncated_file_is_quarantined(store, name):
    digest = store.put(make_state("alpha"))
    path = store.path("alpha") / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StateFormatError, match="moved to"):
        store.get("alpha")
    store.put(make_state("alpha"))
    path.unlink()
    with pytest.raises(StateFormatError, match=f"no such file; moved to .*{digest}-1"):
        store.get("alpha")


def test_an_object_under_another_name_is_refused(store):
    digest, other = store.put(make_state("alpha")), store.put(make_state("beta", seed=1))
    objects = store.root / "objects"
    shutil.rmtree(objects / digest)
    shutil.copytree(objects / other, objects / digest)
    with pytest.raises(StateFormatError, match=f"digest is {other[:16]}, stored as {digest[:16]}"):
        store.get("alpha")


def test_a_damaged_head_fails_its_session_and_stops_pruning(store):
    old = store.put(make_state("alpha"))
    store.put(make_state("beta", seed=1))
    (store.root / "sessions" / "alpha" / "HEAD").write_text("nonsense")
    with pytest.raises(StateFormatError, match="HEAD: digest 'nonsense'"):
        store.get("alpha")
    with pytest.raises(StateFormatError, match="HEAD"):
        store.prune()
    store.delete("beta")
    assert store.get_digest(old).digest == old
    store.put(make_state("alpha"))
    assert store.get("alpha").digest == old


def test_writing_over_a_damaged_object_repairs_it(store):
    state = make_state("alpha")
    digest = store.put(state)
    damage(store, digest)
    store.put(state)
    assert same_tensors(store.get("alpha"), state)


@pytest.mark.parametrize("limit", [10, 3000, 12000])
def test_a_full_disk_keeps_the_old_version_and_leaves_nothing(store, file_size_limit, limit):
    old = store.put(make_state("alpha"))
    before = files_of(store)
    with file_size_limit(limit), pytest.raises(CapacityError, match=r"state store .*bytes needed") as caught:
        store.put(make_state("alpha", seed=1))
    assert "\n" not in str(caught.value)
    assert files_of(store) == before
    assert store.get("alpha").digest == old


# Three files, their folder, the folder of objects, HEAD; only then HEAD moves, and its folders follow.
STEPS_BEFORE_HEAD_MOVES, STEPS = 6, 9


@pytest.mark.parametrize("fail_at", range(1, STEPS + 1))
@pytest.mark.parametrize("session_id", ["alpha", "beta"])
def test_no_space_at_any_step_leaves_the_old_version_or_the_new(store, monkeypatch, fail_at, session_id):
    old = store.put(make_state("alpha"))
    before, real, calls = files_of(store), os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    new = make_state(session_id, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(state_files.os, "fsync", fsync)
        with pytest.raises(CapacityError, match="No space left on device"):
            store.put(new)
    if fail_at <= STEPS_BEFORE_HEAD_MOVES:
        assert files_of(store) == before
        assert store.get("alpha").digest == old
    else:
        assert store.get(session_id).digest == new.digest
    store.put(new)
    assert store.get(session_id).digest == new.digest


def test_a_folder_that_cannot_be_written_says_so(store, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pss_engine.state.adapter.write_durably", refuse)
    with pytest.raises(ConfigError, match=r"state store .*: cannot be written: Permission denied"):
        store.put(make_state())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        StateStore(tmp_path / "file")


def test_a_file_that_cannot_be_opened_is_not_called_damaged(store, monkeypatch):
    digest = store.put(make_state("alpha"))
    real = os.open

    def refuse(path, *args):
        if str(path).endswith("adapter_config.json"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args)

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="cannot be opened: Permission denied"):
        patch.setattr(state_files.os, "open", refuse)
        store.get("alpha")
    assert store.get("alpha").digest == digest


def test_an_unsound_state_is_never_written(store):
    with pytest.raises(StateFormatError, match="not finite"):
        store.put(SessionState.from_tensors("alpha", nan_tensors(), 8.0))
    with pytest.raises(CapacityError, match="state budget"):
        StateStore(store.root, max_state_bytes=100).put(make_state("alpha"))
    assert not store.root.exists()


def test_a_state_that_was_written_to_after_its_digest_was_taken_is_refused(store):
    state = make_state("alpha")
    assert state.digest
    state.factors[2, "q_proj"].a[0, 0] += 1
    with pytest.raises(StateFormatError, match="damaged or edited"):
        store.put(state)
    assert files_of(store) == []


def test_leftovers_of_a_killed_writer_are_swept_and_never_read(store):
    store.put(make_state("alpha"))
    before = files_of(store)
    leftover = store.root / "objects" / ".tmp-dead"
    leftover.mkdir()
    (leftover / "adapter_model.safetensors").write_bytes(b"half")
    (store.root / "sessions" / "alpha" / ".tmp-HEAD").write_text("half")
    (store.root / "sessions" / "beta").mkdir()
    assert store.sessions() == ["alpha"]
    store.put(make_state("alpha"))
    assert files_of(store) == before


KILLED_WRITER = """
import itertools, sys
from pss_engine.state import StateStore
from tests.state.states import QV_KEYS, REPOSITORY, make_state
for seed in itertools.count(int(sys.argv[2])):
    print(StateStore(sys.argv[1]).put(make_state("alpha", keys=QV_KEYS, seed=seed)), flush=True)
"""


def test_what_a_killed_writer_acknowledged_is_there(store):
    for start, num_lines in ((0, 2), (1000, 5)):
        command = [sys.executable, "-c", KILLED_WRITER, str(store.root), str(start)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as writer:
            acknowledged = [writer.stdout.readline().strip() for _ in range(num_lines)]
            writer.kill()
            acknowledged += writer.stdout.read().split()
        for digest in acknowledged:
            assert store.get_digest(digest).digest == digest
        assert store.get("alpha").digest
    store.put(make_state("alpha"))
    assert not list((store.root / "objects").glob(".tmp-*"))


def test_many_threads_write_read_and_delete_one_session(store):
    states = [make_state("alpha", keys=QV_KEYS, seed=seed) for seed in range(4)]
    digests, failures = {state.digest for state in states}, []

    def work(index):
        try:
            for turn in range(4):
                try:
                    store.put(states[(index + turn) % 4])
                    if store.get("alpha").digest not in digests:
                        failures.append("foreign digest")
                    if index == 0:
                        store.delete("alpha")
                except SessionNotFound:
                    continue
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not (store.root / "quarantine").exists()
