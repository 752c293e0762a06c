"""Rows to tables, and tables into documents."""

from __future__ import annotations

import pytest

from bench import report
from pss_engine.errors import ConfigError
from tests.bench.sample_rows import sample_row


def test_one_metric_puts_the_backends_side_by_side_and_shared_params_above() -> None:
    rows = [
        sample_row([2e-3], params={"rank": rank, "shape": "8->8"}, backend=backend, gbps=5.0, limit_gbps=10.0)
        for rank in (8, 32)
        for backend in ("cpp", "torch")
    ]
    assert report.table(rows, "an op").split("\n") == [
        "**an op**: seconds (shape 8->8)",
        "",
        "| rank | cpp | torch |",
        "| --- | --- | --- |",
        "| 8 | 2.00 ms, 5.0 GB/s = 50 % | 2.00 ms, 5.0 GB/s = 50 % |",
        "| 32 | 2.00 ms, 5.0 GB/s = 50 % | 2.00 ms, 5.0 GB/s = 50 % |",
    ]


def test_several_metrics_become_columns_and_a_missing_one_stays_empty() -> None:
    rows = [
        sample_row([0.5], params={"search": "raw"}, metric="recall_at_4", unit="share", n=10),
        sample_row([0.25], params={"search": "raw"}, metric="right_dialogue", unit="share", n=10),
        sample_row([1.0], params={"search": "clue"}, metric="recall_at_4", unit="share", n=10),
    ]
    assert report.table(rows, "questions").split("\n")[2:] == [
        "| search | backend | recall at 4 | right dialogue |",
        "| --- | --- | --- | --- |",
        "| raw | torch | 50.0 % | 25.0 % |",
        "| clue | torch | 100.0 % |  |",
    ]


def test_where_no_param_varies_the_metrics_are_the_lines_and_the_backends_stand_side_by_side() -> None:
    rows = [
        sample_row([value], backend=backend, metric=metric, unit=unit)
        for backend, value in (("pss_engine (cpp)", 1.5), ("peft 0.20", 3.0))
        for metric, unit in (("seconds", "s"), ("final_loss", "nats"))
    ]
    assert report.table(rows, "write").split("\n") == [
        "**write** (rank 8)",
        "",
        "| metric | pss_engine (cpp) | peft 0.20 |",
        "| --- | --- | --- |",
        "| seconds | 1.50 s | 3.00 s |",
        "| final loss | 1.5 nats | 3 nats |",
    ]


def test_a_spread_is_shown_where_there_is_one() -> None:
    assert "| 2.00 ms (1.40 ms to 2.60 ms) |" in report.table([sample_row([1e-3, 2e-3, 3e-3])], "an op")


def test_a_section_says_what_it_was_measured_on() -> None:
    text = report.section([sample_row()])
    assert text.endswith(
        "`python -m bench lora`, run run-1 of 2026-01-02, commit aaaaaaaaaaaa: "
        "A Processor, 2 cores, avx2, 8.00 GiB; torch 2.0."
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234, "s", "1.23 s"),
        (0.0456, "s", "45.6 ms"),
        (7.8e-6, "s", "7.80 µs"),
        (2e-7, "s", "0.20 µs"),
        (5 * 2**20, "bytes", "5.00 MiB"),
        (12, "bytes", "12 bytes"),
        (15025, "tokens", "15,025 tokens"),
        (0.875, "share", "87.5 %"),
        (1.5, "nats", "1.5 nats"),
    ],
)
def test_numbers_are_written_in_their_usual_size(value: float, unit: str, text: str) -> None:
    assert report.number(value, unit) == text


def test_only_the_part_between_the_marks_is_replaced() -> None:
    text = "a\n<!-- bench:lora -->\nold\n<!-- /bench -->\nb\n<!-- bench:writer -->\n<!-- /bench -->\nc\n"
    filled = report.fill(text, {"lora": "| new |", "writer": "| w |"})
    assert filled == (
        "a\n<!-- bench:lora -->\n| new |\n<!-- /bench -->\nb\n<!-- bench:writer -->\n| w |\n<!-- /bench -->\nc\n"
    )
    assert report.fill(filled, {"lora": "| new |", "writer": "| w |"}) == filled


def test_a_document_without_marks_or_with_one_of_a_suite_without_rows_is_an_error() -> None:
    with pytest.raises(ConfigError, match="to fill"):
        report.fill("no marks", {"lora": ""})
    with pytest.raises(ConfigError, match="dialogues, which has no rows"):
        report.fill("<!-- bench:dialogues -->\n<!-- /bench -->", {"lora": ""})
