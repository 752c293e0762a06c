"""What moved between two runs."""

from __future__ import annotations

from dataclasses import replace

from bench import compare
from tests.bench.sample_rows import CPU, sample_row


def test_the_largest_change_comes_first_and_lonely_rows_are_counted() -> None:
    old = [sample_row([1.0], params={"rank": rank}) for rank in (8, 16, 32)]
    new = [sample_row([s], params={"rank": rank}, run="run-2") for rank, s in ((8, 0.9), (16, 4.0), (64, 1.0))]
    lines = compare.table(old, new).split("\n")
    assert lines[2] == "| an op rank=16 torch seconds | 1.00 s | 4.00 s | 4.00 |"
    assert lines[3] == "| an op rank=8 torch seconds | 1.00 s | 900 ms | 0.90 |"
    assert lines[-1] == "2 rows compared; 1 are in OLD only, 1 in NEW only."


def test_a_share_that_was_zero_has_no_ratio() -> None:
    old, new = (sample_row([value], unit="share", metric="recall_at_4") for value in (0.0, 0.5))
    assert compare.table([old], [new]).split("\n")[2].endswith("| 0.0 % | 50.0 % | was 0 |")
    assert compare.table([old], [old]).split("\n")[2].endswith("| 1.00 |")


def test_another_device_is_said() -> None:
    row = sample_row()
    moved = replace(row, device={**CPU, "name": "Another Processor"})
    assert "different devices: A Processor and Another Processor" in compare.table([row], [moved])
