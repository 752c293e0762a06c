"""The command line of the harness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.rows import Measurement, append_rows, read_rows
from bench.suites import SUITES, Options, Skipped, runner
from tests.bench.sample_rows import sample_row


def _suite(monkeypatch: pytest.MonkeyPatch, *found: Measurement | Exception) -> None:
    def run(_: Options) -> Iterator[Measurement]:
        for item in found:
            if isinstance(item, Exception):
                raise item
            yield item

    monkeypatch.setattr(command, "runner", lambda _: run)


ONE = Measurement("an op", {"rank": 8}, "torch", "seconds", "s", [1.0], True)


@pytest.mark.parametrize("suite", SUITES)
def test_every_registered_suite_runs_by_name_and_is_in_the_help(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(runner(suite))
    assert command.main([]) == 0
    assert suite in capsys.readouterr().out


def test_a_run_appends_rows_with_its_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _suite(monkeypatch, ONE)
    out = tmp_path / "rows.jsonl"
    assert [command.main(["lora", "--quick", "--out", str(out)]) for _ in range(2)] == [0, 0]
    rows = read_rows(out)
    assert len({row.run for row in rows}) == len(rows) == 2
    assert rows[0].suite == "lora"
    assert rows[0].command.startswith("python -m bench lora --quick --out")


def test_a_skipped_suite_says_why_leaves_no_row_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _suite(monkeypatch, ONE, Skipped("no data"))
    assert command.main(["dialogues", "--out", str(tmp_path / "rows.jsonl")]) == 0
    assert "dialogues is skipped: no data" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_run_that_fails_keeps_its_rows_apart_from_those_of_whole_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _suite(monkeypatch, ONE, RuntimeError("a kernel is wrong"))
    with pytest.raises(RuntimeError, match="a kernel is wrong"):
        command.main(["lora", "--out", str(tmp_path / "rows.jsonl")])
    assert not (tmp_path / "rows.jsonl").exists()
    assert [row.metric for row in read_rows(tmp_path / "rows.unfinished.jsonl")] == ["seconds"]
    assert "its 1 rows are in" in capsys.readouterr().err


def test_dialogues_is_skipped_without_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["dialogues", "--data", str(tmp_path)]) == 0
    assert "dialogue_memory.jsonl" in capsys.readouterr().err


def test_report_prints_the_newest_run_and_fills_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    append_rows(tmp_path / "lora.jsonl", [sample_row([9.0]), sample_row([1.0], run="run-2")])
    assert command.main(["report"]) == 0
    printed = capsys.readouterr()
    assert "| 1.00 s |" in printed.out
    assert "9.00 s" not in printed.out
    assert "writer has no rows" in printed.err
    document = tmp_path / "README.md"
    document.write_text("<!-- bench:lora -->\n<!-- /bench -->\n")
    assert command.main(["report", "--write", str(document)]) == 0
    assert "| 1.00 s |" in document.read_text()


def test_errors_are_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert command.main(["report", "speed"]) == 1
    lines = capsys.readouterr().err.strip().split("\n")
    assert len(lines) == 2
    assert "choices: lora, writer" in lines[1]
