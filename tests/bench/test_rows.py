"""Rows: exactly the documented fields, checked when made and when read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.rows import append_rows, newest_run, read_rows
from pss_engine.errors import ConfigError
from tests.bench.sample_rows import sample_row

FIELDS = {"suite", "case", "params", "backend", "metric", "unit", "p20", "p50", "p80", "n", "checked", "run"}
FIELDS |= {"device", "versions", "commit", "command", "time"}


def test_a_row_has_the_documented_fields_and_no_others() -> None:
    assert set(sample_row().to_dict()) == FIELDS
    speed: dict[str, Any] = {"gbps": 1.0, "limit_gbps": 2.0, "gflops": 3.0, "limit_gflops": 4.0}
    assert set(sample_row(**speed).to_dict()) == FIELDS | set(speed)


def test_percentiles_and_count_come_from_the_samples() -> None:
    row = sample_row([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (row.p20, row.p50, row.p80, row.n) == (2.0, 3.5, 5.0, 6)


def test_a_share_over_many_questions_keeps_their_number() -> None:
    row = sample_row([0.25], unit="share", n=60)
    assert (row.p20, row.p50, row.p80, row.n) == (0.25, 0.25, 0.25, 60)


def test_rows_round_trip_and_are_only_appended(tmp_path: Path) -> None:
    path = tmp_path / "results" / "lora.jsonl"
    first, second = sample_row(), sample_row(run="run-2", gbps=1.5, checked="no peer")
    append_rows(path, [first])
    append_rows(path, [second, second])
    assert read_rows(path) == [first, second, second]
    assert newest_run(read_rows(path)) == [second, second]
    assert newest_run([]) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"unit": "furlongs"}, "choices: s, bytes"),
        ({"p20": 9.0}, "not in order"),
        ({"p80": math.inf}, "finite"),
        ({"gbps": math.nan}, "finite"),
        ({"n": 0}, "at least 1"),
        ({"checked": ""}, "says why not"),
        ({"checked": False}, "says why not"),
        ({"backend": ""}, "not empty"),
        ({"params": []}, "must be an object"),
        ({"host": "x"}, "'host'"),
    ],
)
def test_a_wrong_row_is_refused_with_its_file_and_line(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + json.dumps({**sample_row().to_dict(), **changed}) + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 2") as error:
        read_rows(path)
    assert message in str(error.value)


def test_a_missing_field_a_broken_line_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = sample_row().to_dict()
    del row["commit"]
    path.write_text(json.dumps(row))
    with pytest.raises(ConfigError, match="'commit'"):
        read_rows(path)
    path.write_text('{"suite": ')
    with pytest.raises(ConfigError, match="line 1"):
        read_rows(path)
    with pytest.raises(ConfigError, match=r"absent\.jsonl cannot be read"):
        read_rows(tmp_path / "absent.jsonl")


def test_the_key_is_the_same_for_another_version_of_a_peer_only() -> None:
    assert sample_row(backend="peft 0.18").key == sample_row(backend="peft 0.19", run="run-2").key
    assert sample_row(params={"rank": 8}).key != sample_row(params={"rank": 32}).key
