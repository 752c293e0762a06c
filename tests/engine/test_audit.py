"""Books that do not balance raise an alarm and leave a dump; the requests go on as if nothing was wrong."""

from __future__ import annotations

import json
import logging

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.kv import SHARED
from tests.tiny import tiny_model


@pytest.fixture(autouse=True)
def books_balance_after_every_step():
    """Not here: these tests are about books that do not."""


PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)


def engine_of(tmp_path, **config):
    return Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**20, audit_folder=str(tmp_path), **config))


def test_a_wrong_charge_is_counted_logged_and_dumped_and_the_call_ends_well(tmp_path, caplog):
    expected = engine_of(tmp_path).generate([Request("hello", PARAMS)])[0].token_ids
    engine = engine_of(tmp_path, audit_steps=1)
    engine.add(Request("hello", PARAMS, request_id="victim"))
    engine.step()
    engine.memory.ledger._live["victim"].charged[0] += 7
    with caplog.at_level(logging.ERROR, "pss_engine"):
        outputs = []
        while engine.num_unfinished:
            outputs += engine.step()
    assert outputs[0].token_ids == expected
    assert engine.counters.num_audit_alarms > 3
    assert "KV accounting does not balance: ledger: call 'victim' is charged" in caplog.text
    dumps = sorted(tmp_path.glob("pss-kv-alarm-*.json"))
    assert len(dumps) == 3, "the first three alarms are written, no more"
    document = json.loads(dumps[0].read_text())
    assert document["live"] == ["victim"]
    assert document["ledger"]["calls"][0]["call_id"] == "victim"
    assert sum(document["pools"][SHARED]["references"]) == len(document["ledger"]["holders"][SHARED])


def test_a_dump_that_cannot_be_written_is_an_alarm_all_the_same(tmp_path, caplog):
    engine = engine_of(tmp_path / "missing", audit_steps=1)
    engine.memory.pools[SHARED].allocate(1)
    engine.generate([Request("hello", PARAMS)])
    assert engine.counters.num_audit_alarms == engine.counters.num_audits > 0
    assert "no dump: " in caplog.text


def test_the_books_are_proved_every_so_many_steps(tmp_path):
    often, never = engine_of(tmp_path, audit_steps=2), engine_of(tmp_path, audit_steps=0)
    for engine in (often, never):
        engine.generate([Request("hello", PARAMS)])
    assert often.counters.num_audits == often.counters.num_steps // 2 > 0
    assert often.counters.num_audit_alarms == never.counters.num_audits == 0
