"""The row: one measured number with all that is needed to believe it. Rows are JSON, one a line, and only appended."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.timing import quantiles
from pss_engine.errors import ConfigError

UNITS = ("s", "bytes", "share", "ratio", "tokens", "tokens/s", "steps", "nats")
_TEXTS = ("suite", "case", "backend", "metric", "unit", "run", "commit", "command", "time")
_OBJECTS = ("params", "device", "versions")
_OPTIONAL = ("gbps", "limit_gbps", "gflops", "limit_gflops")


@dataclass(frozen=True)
class Measurement:
    """What a suite knows of a number; the harness adds who measured it, where and when.

    Attributes:
        params: what was varied or capped; rows of one case differ here.
        backend: ours, or the peer's name and version.
        samples: at least one. A share over many questions is one sample, with ``n`` the number of questions.
        n: what the number rests on; 0 = the number of samples.
        checked: True if equality was proved before timing, else why it was not.
    """

    case: str
    params: Mapping[str, Any]
    backend: str
    metric: str
    unit: str
    samples: Sequence[float]
    checked: bool | str
    n: int = 0
    gbps: float | None = None
    limit_gbps: float | None = None
    gflops: float | None = None
    limit_gflops: float | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Stamp:
    """What all rows of one run have in common; ``devices`` by torch device type."""

    suite: str
    run: str
    devices: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    commit: str
    command: str
    time: str


@dataclass(frozen=True)
class Row:
    """One line of ``bench/results/SUITE.jsonl`` (DESIGN section 5).

    Raises:
        ConfigError: an unknown unit, numbers that are not finite or not in order, no samples, or an empty ``checked``.
    """

    suite: str
    case: str
    params: dict[str, Any]
    backend: str
    metric: str
    unit: str
    p20: float
    p50: float
    p80: float
    n: int
    checked: bool | str
    run: str
    device: dict[str, Any]
    versions: dict[str, str]
    commit: str
    command: str
    time: str
    gbps: float | None = None
    limit_gbps: float | None = None
    gflops: float | None = None
    limit_gflops: float | None = None

    def __post_init__(self) -> None:
        where = f"row {self.suite}/{self.case}/{self.metric}"
        for name in _TEXTS:
            if not (isinstance(value := getattr(self, name), str) and value):
                raise ConfigError(f"{where}: {name} is {value!r}; it must be a text that is not empty")
        for name in _OBJECTS:
            if not isinstance(value := getattr(self, name), dict):
                raise ConfigError(f"{where}: {name} is {type(value).__name__}; it must be an object")
        if self.unit not in UNITS:
            raise ConfigError(f"{where}: unit {self.unit!r} is unknown; choices: {', '.join(UNITS)}")
        numbers = [self.p20, self.p50, self.p80, *(v for n in _OPTIONAL if (v := getattr(self, n)) is not None)]
        if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in numbers):
            raise ConfigError(f"{where}: {numbers} must be finite numbers")
        if not self.p20 <= self.p50 <= self.p80:
            raise ConfigError(f"{where}: percentiles {self.p20}, {self.p50}, {self.p80} are not in order")
        if not isinstance(self.n, int) or self.n < 1:
            raise ConfigError(f"{where}: n is {self.n!r}; it must be at least 1")
        if self.checked is not True and not (isinstance(self.checked, str) and self.checked):
            raise ConfigError(f"{where}: checked is {self.checked!r}; it must be true, or a text that says why not")

    @classmethod
    def of(cls, found: Measurement, stamp: Stamp) -> Row:
        p20, p50, p80 = quantiles(found.samples)
        return cls(
            suite=stamp.suite,
            case=found.case,
            params=dict(found.params),
            backend=found.backend,
            metric=found.metric,
            unit=found.unit,
            p20=p20,
            p50=p50,
            p80=p80,
            n=found.n or len(found.samples),
            checked=found.checked,
            run=stamp.run,
            device=dict(stamp.devices[found.device]),
            versions=dict(stamp.versions),
            commit=stamp.commit,
            command=stamp.command,
            time=stamp.time,
            **{name: getattr(found, name) for name in _OPTIONAL},
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Row:
        """Raises ConfigError for a missing or an unknown field."""
        required = {entry.name for entry in fields(cls) if entry.default is MISSING}
        missing, unknown = required - set(values), set(values) - required - set(_OPTIONAL)
        if missing or unknown:
            raise ConfigError(f"row: fields {sorted(missing)} are missing, {sorted(unknown)} are unknown")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields of the row; those of the optional ones that were not measured are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _OPTIONAL}

    @property
    def key(self) -> str:
        """What is the same in two runs of one suite: case, params, metric, and the backend without its version."""
        backend = self.backend.split()[0]
        return json.dumps([self.suite, self.case, self.params, backend, self.metric], sort_keys=True)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """All rows of a run in one write, so that a run that failed half way leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row.to_dict(), allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read_rows(path: Path) -> list[Row]:
    """Raises ConfigError naming the file and the line."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"bench rows {path.name} cannot be read: {error.strerror}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(Row.from_dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"bench rows {path.name}, line {number}: {error}") from None
    return rows


def newest_run(rows: Sequence[Row]) -> list[Row]:
    """The rows of the run that was appended last."""
    return [row for row in rows if row.run == rows[-1].run] if rows else []
