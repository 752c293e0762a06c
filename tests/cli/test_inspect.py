"""``pss inspect`` tells the truth about states, stores and models."""

from __future__ import annotations

import shutil
from pathlib import Path

from pss_engine.engine import Engine
from pss_engine.state import StateStore
from tests.cli.conftest import TARGETS, Pss
from tests.tiny import NUM_SESSION_LAYERS, tiny_model, tiny_model_folder


def test_a_state_by_session_and_by_folder_is_the_same(pss: Pss, files: Path) -> None:
    store = StateStore(files / "store")
    by_session = pss("inspect", "state", "heron", "--store", files / "store", "--json").json
    by_folder = pss("inspect", "state", store.path("heron"), "--json").json
    assert by_session == by_folder
    assert by_session["digest"] == store.get("heron").digest
    assert by_session["layers"] == [2, 3]


def test_a_state_for_people_names_its_origin(pss: Pss, files: Path) -> None:
    out = pss("inspect", "state", "heron", "--store", files / "store").out
    assert TARGETS["clue"] in out
    assert "readout_steps 3" in " ".join(out.split())


def test_a_store_lists_its_sessions(pss: Pss, files: Path) -> None:
    document = pss("inspect", "store", files / "store", "--json").json
    assert [row["session_id"] for row in document["sessions"]] == ["heron"]
    assert document["num_bytes"] == StateStore(files / "store").get("heron").num_bytes
    assert "heron" in pss("inspect", "store", files / "store").out


def test_a_damaged_state_is_named_and_the_exit_code_says_so(pss: Pss, files: Path, tmp_path: Path) -> None:
    root = shutil.copytree(files / "store", tmp_path / "store")
    store = StateStore(root)
    store.put(store.get("heron").for_session("egret"))
    weights = store.path("heron") / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    ran = pss("inspect", "store", root, "--json")
    assert ran.code == 1
    assert ran.json["num_damaged"] == 2
    assert "safetensors" in ran.json["sessions"][0]["error"]


def test_the_store_may_be_named_by_the_environment(pss: Pss, files: Path, monkeypatch) -> None:
    monkeypatch.setenv("PSS_STORE", str(files / "store"))
    assert pss("inspect", "state", "heron", "--json").json["session_id"] == "heron"


def test_a_model_weighs_what_the_engine_says(pss: Pss, files: Path, model: str) -> None:
    document = pss("inspect", "model", model, "--num-session-layers", NUM_SESSION_LAYERS, "--rank", 4, "--json").json
    geometry = Engine(tiny_model("llama")).memory.geometry
    kv = document["kv_bytes_per_token"]
    assert kv["all"] == geometry.bytes_per_token == kv["shared"] + kv["session"]
    assert kv["shared"] == geometry.token_bytes("shared")
    assert document["state_bytes"] == StateStore(files / "store").get("heron").num_bytes
    assert document["fingerprint"] is None


def test_a_models_fingerprint_is_the_one_that_states_carry(pss: Pss, model: str) -> None:
    assert (
        pss("inspect", "model", model, "--fingerprint", "--json").json["fingerprint"] == tiny_model("llama").fingerprint
    )


def test_a_fused_model_names_its_own_targets(pss: Pss) -> None:
    ran = pss("inspect", "model", tiny_model_folder("phi3"))
    assert "qkv_proj" in ran.out
    assert "q_proj 48" not in ran.out.replace("qkv_proj", "")
