"""A timeline holds every change of charge, and its curves are those that the ledger had."""

from __future__ import annotations

import errno
import json
import os

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.errors import ConfigError
from pss_engine.kv.timeline import BY, NOBODY, SCHEMA, read_curves
from tests.tiny import tiny_model

PARAMS = SamplingParams(max_new_tokens=9, ignore_eos=True)
OWNERS = [("s0", "planner", "q0"), ("s1", "planner", "q0"), ("s0", "critic", "q1"), ("", "", "")]


def run(path):
    """Requests of several owners that share a prefix; what the ledger said before each forward and after each step."""
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**20, block_size=4, kv_timeline=str(path)))
    said = []
    forward = engine._runner.run

    def watched(chunks):
        said.append({by: engine.memory.ledger.charges("call_id" if by == "call" else by) for by in BY})
        return forward(chunks)

    engine._runner.run = watched
    common = "a beginning that all of them have in common, "
    for at, (session, agent, query) in enumerate(OWNERS):
        engine.add(Request(common + "x" * at, PARAMS, usage_session=session, agent=agent, query=query))
        engine.step()
    engine.abort(next(iter(engine._live)))
    while engine.num_unfinished:
        engine.step()
    return engine, said


@pytest.mark.parametrize("by", BY)
def test_curves_are_what_the_ledger_said(tmp_path, by):
    engine, said = run(tmp_path / "kv.jsonl")
    curves = read_curves(tmp_path / "kv.jsonl", by)
    totals = [sum(found[by].values()) for found in said]
    assert curves.peak_bytes == max(totals)
    owners = said[totals.index(max(totals))][by]
    assert dict(curves.peak_owners) == {name or NOBODY: value for name, value in owners.items() if value}
    moments = [zip(curves.names, values, strict=True) for values in zip(*curves.values, strict=True)]
    found = [{name: value for name, value in moment if value} for moment in moments]
    for moment in said:
        assert {name or NOBODY: value for name, value in moment[by].items() if value} in found
    assert found[-1] == {}
    assert curves.cached[-1] == engine.memory.bytes_cached > 0
    assert list(curves.times) == sorted(curves.times)


def test_lines_have_step_time_owner_and_bytes(tmp_path):
    run(tmp_path / "kv.jsonl")
    head, *lines = [json.loads(line) for line in (tmp_path / "kv.jsonl").read_text().splitlines()]
    assert (head["schema"], head["block_tokens"], head["kv_dtype"]) == (SCHEMA, 4, "float32")
    assert {line["owner"] for line in lines} == {"call", "cache"}
    assert all({"step", "time", "owner", "bytes"} <= set(line) for line in lines)


HEAD = json.dumps({"schema": SCHEMA})
LINE = {"step": 1, "time": 0.5, "owner": "call", "call": "a", "query": "", "session": "", "agent": "", "bytes": 5}


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no changes"),
        (HEAD, "has no changes"),
        ('{"schema": "other/9"}', "schema 'other/9'"),
        (HEAD + "\nnot json", "line 2"),
        (HEAD + "\n" + json.dumps({**LINE, "bytes": "many"}), "line 2"),
        (HEAD + "\n" + json.dumps({**LINE, "agent": 3}), "line 2"),
        (HEAD + "\n[]", "line 2"),
        ("[1]", "line 1"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "kv.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_curves(tmp_path / "kv.jsonl")


def test_a_missing_file_an_unknown_owner_and_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl.*cannot be read"):
        read_curves(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="choices: session, agent, query, call"):
        read_curves(tmp_path / "none.jsonl", "colour")
    with pytest.raises(ConfigError, match="cannot be written"):
        Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**20, kv_timeline=str(tmp_path / "no" / "kv.jsonl")))


def test_a_disk_that_fills_ends_the_timeline_and_not_the_engine(tmp_path, monkeypatch, caplog):
    def full(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**20, kv_timeline=str(tmp_path / "kv.jsonl")))
    monkeypatch.setattr(engine._timeline, "_write", full)
    for prompt in ("hello", "hello again"):
        (output,) = engine.generate([Request(prompt, PARAMS)])
        assert len(output.token_ids) == 9
    assert engine._timeline.is_broken
    assert caplog.text.count("No space left on device") == 1
