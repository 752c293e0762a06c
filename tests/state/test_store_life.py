"""A state's life in the store: versions and their order, going back, deletion that can be shown, locks, tenants."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.errors import ConfigError, SessionNotFound, StateFormatError
from pss_engine.state import HeadMoved, StateMeta, StateStore, StoreLocked
from pss_engine.state.diff import compare
from tests.state.states import QV_KEYS, REPOSITORY, make_state


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "store")


def put(store, *seeds, session="alpha"):
    return [store.put(make_state(session, keys=QV_KEYS, seed=seed)) for seed in seeds]


def digests(store, session="alpha"):
    return [version.digest for version in store.log(session)]


def test_every_version_is_in_the_log_and_can_be_had(store):
    first, second = put(store, 1, 2)
    put(store, 2)  # the same state again is no new version
    log = store.log("alpha")
    assert [(v.number, v.digest, v.action) for v in log] == [(1, first, "put"), (2, second, "put")]
    assert all(version.time.endswith("+00:00") for version in log)
    assert store.get_digest(first).digest == first and store.head("alpha") == second


def test_a_rollback_is_a_version_too(store):
    first, second, third = put(store, 1, 2, 3)
    assert store.rollback("alpha") == second == store.get("alpha").digest
    assert store.rollback("alpha", first[:10]) == first == store.head("alpha")
    assert digests(store) == [first, second, third, second, first]
    assert [v.action for v in store.log("alpha")][-2:] == ["rollback", "rollback"]
    assert store.rollback("alpha") == second


@pytest.mark.parametrize("to", ["zz", ""])
def test_a_rollback_to_nothing_names_the_choices(store, to):
    (only,) = put(store, 1)
    with pytest.raises(ConfigError, match=only[:16]):
        store.rollback("alpha", to)
    with pytest.raises(SessionNotFound):
        store.rollback("beta")


def test_a_rollback_to_a_damaged_version_changes_nothing(store):
    first, second = put(store, 1, 2)
    (store.root / "objects" / first / "adapter_config.json").write_text("{")
    with pytest.raises(StateFormatError):
        store.rollback("alpha")
    assert store.head("alpha") == second


def test_the_head_moves_only_from_where_it_is_expected(store):
    state = make_state("alpha", keys=QV_KEYS)
    store.put(state, expected="")
    with pytest.raises(HeadMoved, match="none was expected"):
        store.put(make_state("alpha", keys=QV_KEYS, seed=1), expected="")
    second = store.put(make_state("alpha", keys=QV_KEYS, seed=1), expected=state.digest)
    with pytest.raises(HeadMoved, match=f"current version is {second[:16]}"):
        store.rollback("alpha", expected=state.digest)
    assert store.head("alpha") == second


def test_gc_keeps_what_a_session_names(store):
    old = put(store, 1, 2, 3)
    put(store, 1, session="beta")
    assert store.gc() == 0
    assert store.gc(keep_versions=2) == 0  # the first version of alpha is that of beta
    assert digests(store) == old[1:]
    assert store.gc(keep_versions=1) == 1
    assert digests(store) == old[2:] and store.get("beta").digest == old[0]
    with pytest.raises(ConfigError, match="keep_versions is 0"):
        store.gc(keep_versions=0)


def test_a_deletion_lists_every_file_that_is_gone_and_leaves_none(store):
    first, second = put(store, 1, 2)
    put(store, 2, session="beta")
    damaged = store.root / "objects" / first / "adapter_config.json"
    damaged.write_text("{")
    with pytest.raises(StateFormatError, match="quarantine"):
        store.get_digest(first)
    before = {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}
    proof = store.delete("alpha")
    after = {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}
    assert {erased.path for erased in proof.erased} == before - after
    assert any("quarantine" in erased.path for erased in proof.erased)
    assert all(len(erased.sha256) == 64 for erased in proof.erased)
    assert (proof.kept, proof.left, set(proof.digests)) == ((second,), (), {first, second})
    assert not any(first in path or "alpha" in path for path in after)
    assert store.get("beta").digest == second
    assert proof.to_dict()["session_id"] == "alpha"


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "back", "rm", "gc"]), st.sampled_from("ab"), st.integers(0, 3)), max_size=14
    )
)
@settings(max_examples=15)
def test_whatever_is_done_every_session_keeps_the_state_it_should_have(tmp_path_factory, steps):
    store = StateStore(tmp_path_factory.mktemp("store"))
    model: dict[str, list[str]] = {}
    for action, session, seed in steps:
        if action == "put":
            digest = store.put(make_state(session, keys=QV_KEYS[:1], seed=seed, rank=1))
            if model.setdefault(session, [])[-1:] != [digest]:
                model[session].append(digest)
        elif action == "gc":
            store.gc()
        elif session in model and action == "rm":
            assert store.delete(session).left == ()
            del model[session]
        elif session in model and action == "back" and len(model[session]) > 1:
            model[session].append(model[session][-2])
            assert store.rollback(session) == model[session][-1]
    assert store.sessions() == sorted(model)
    for session, versions in model.items():
        assert digests(store, session) == versions
        assert all(store.get_digest(digest).digest == digest for digest in versions)
    store.gc()
    assert len(list((store.root / "objects").glob("*"))) == len({d for versions in model.values() for d in versions})


HOLDER = """
import sys, time
from pss_engine.state.store_folder import StoreFolder
with StoreFolder(sys.argv[1]).lock(exclusive=True, work="put gamma"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_store_that_another_process_writes_to_says_who_and_since_when(store):
    (digest,) = put(store, 1)
    hasty = StateStore(store.root, lock_timeout_s=0.0)
    command = [sys.executable, "-c", HOLDER, str(store.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as holder:
        assert holder.stdout.readline() == "held\n"
        for work in (lambda: put(hasty, 2), lambda: hasty.get("alpha"), lambda: hasty.delete("alpha")):
            with pytest.raises(StoreLocked, match=rf"locked by process {holder.pid} on .* for \d+\.\d s \(put gamma\)"):
                work()
        holder.kill()
    assert hasty.get("alpha").digest == digest  # the lock of a killed process is nobody's


def test_tenants_see_nothing_of_each_other(tmp_path):
    acme, other, nobody = (StateStore(tmp_path, tenant=name) for name in ("acme", "other", ""))
    (digest,) = put(acme, 1)
    for store in (other, nobody):
        assert store.sessions() == [] and "alpha" not in store
        with pytest.raises(StateFormatError):
            store.get_digest(digest)
    put(other, 1)
    acme.delete("alpha")
    assert other.get("alpha").digest == digest
    for name in ("../acme", "Acme", "a/b"):
        with pytest.raises(ConfigError, match="session id"):
            StateStore(tmp_path, tenant=name)


def test_a_difference_names_words_and_how_far_each_layer_moved():
    old = make_state("alpha", meta=StateMeta(clue="route A", seed=1))
    new = make_state("alpha", meta=StateMeta(clue="route B", seed=1))
    assert compare(old, old)["changed"] == {}
    found = compare(old, new)
    assert found["changed"] == {"clue": ["route A", "route B"]}
    assert found["moved_by_layer"] == pytest.approx({2: 0.0, 3: 0.0}, abs=1e-6)
    other = make_state("alpha", seed=9)
    expected = {}
    for layer in (2, 3):
        deltas = [
            (new_pair.scaling * new_pair.b @ new_pair.a, pair.scaling * pair.b @ pair.a)
            for (key, pair), new_pair in zip(old.factors.items(), other.factors.values(), strict=True)
            if key[0] == layer
        ]
        moved, base = (
            sum(float(part.double().pow(2).sum()) for part in parts)
            for parts in ([a - b for a, b in deltas], [b for _, b in deltas])
        )
        expected[layer] = (moved / base) ** 0.5
    assert compare(old, other)["moved_by_layer"] == pytest.approx(expected, rel=1e-5)
