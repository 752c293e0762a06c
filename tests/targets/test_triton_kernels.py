"""What the compiled Triton kernels take, against the committed table: no growth, no spills in hot kernels, memory fits.

After a change that is meant: ``python -m tests.targets.compile_triton --write``.
"""

from __future__ import annotations

import csv
import sys
from functools import cache

import pytest

from tests.targets.builds import run
from tests.targets.compile_triton import GOLDEN, TARGETS
from tests.targets.triton_variants import Variant, variants

pytestmark = pytest.mark.targets
pytest.importorskip("triton", reason="triton is not installed")

# Bytes of shared memory that one program may have.
MAX_SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 110: 227, 120: 99, 121: 99}
MAX_REGISTERS = 65536

Row = dict[str, str]


def parse(text: str) -> tuple[str, dict[tuple[str, int], Row]]:
    version, _, table = text.partition("\n")
    rows = csv.DictReader(table.splitlines())
    return version.removeprefix("# "), {(row["variant"], int(row["target"])): row for row in rows}


@cache
def compiled() -> tuple[str, dict[tuple[str, int], Row]]:
    output = run(sys.executable, "-m", "tests.targets.compile_triton", environment={"TRITON_INTERPRET": ""})
    return parse(output[output.index("# triton") :])


@cache
def by_name() -> dict[str, Variant]:
    return {variant.name: variant for variant in variants()}


def test_every_variant_compiles_for_every_target() -> None:
    assert set(compiled()[1]) == {(name, target) for name in by_name() for target in TARGETS}


def test_no_variant_takes_more_than_the_table_says() -> None:
    (version, found), (golden_version, golden) = compiled(), parse(GOLDEN.read_text())
    assert set(golden) == set(found)
    if version != golden_version:
        pytest.skip(f"the table was made with {golden_version}, this is {version}")
    keys = ("registers", "stack", "spills", "shared")
    grown = [
        f"{name} on sm_{target}: {key} {golden[name, target][key]} -> {row[key]}"
        for (name, target), row in found.items()
        for key in keys
        if int(row[key]) > int(golden[name, target][key])
    ]
    assert not grown, "\n".join(grown)


def test_hot_kernels_spill_nothing() -> None:
    rows = [row for (name, _), row in compiled()[1].items() if by_name()[name].hot]
    assert rows
    assert not [row for row in rows if int(row["spills"])]


def test_every_program_fits_its_multiprocessor() -> None:
    for (name, target), row in compiled()[1].items():
        warps = by_name()[name].options.get("num_warps", 4)
        assert int(row["shared"]) <= MAX_SHARED[target] * 1024, row
        assert int(row["registers"]) * 32 * warps <= MAX_REGISTERS, row
