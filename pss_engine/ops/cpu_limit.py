"""How many processors this process may keep busy: its affinity mask and the quota of its container."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class CPULimit:
    """What bounds the threads of this process.

    Attributes:
        affinity: processors that it may run on.
        quota: processor time per time that its cgroups grant (2.5: two and a half processors); None: no limit.
    """

    affinity: int
    quota: float | None = None

    @property
    def max_threads(self) -> int:
        """Threads worth starting: the affinity, and no more than the whole processors of the quota, but one.

        Rounded down: the kernel stops a team that is over its quota for the rest of each period, usually 100 ms, and a
        step waits for its slowest thread.
        """
        return self.affinity if self.quota is None else max(1, min(self.affinity, int(self.quota)))


def cpu_limit(root: Path = Path("/")) -> CPULimit:
    """The limits of this process; ``root`` is where ``proc`` and the cgroup file systems are mounted."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return CPULimit(affinity, min(_quotas(root), default=None))


def _quotas(root: Path) -> Iterator[float]:
    """The quota of this process's group and of each group above it, in cgroup v1 and v2."""
    for mount, group, is_v2 in _groups(root):
        for folder in (group, *group.parents):
            quota = _v2_quota(folder) if is_v2 else _v1_quota(folder)
            if quota is not None:
                yield quota
            if folder == mount:
                break


def _groups(root: Path) -> Iterator[tuple[Path, Path, bool]]:
    """(mount point, folder of this process's group, v2) of each hierarchy that can limit processor time."""
    paths = {}  # hierarchy: "" for v2, "cpu" for v1 -> path of the group
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            paths["cpu" if controllers else ""] = path
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        is_v2 = kind == "cgroup2"
        if not is_v2 and (kind != "cgroup" or "cpu" not in options.split(",")):
            continue
        name = "" if is_v2 else "cpu"
        if name in paths:
            path = paths[name]
            top, point = (OCTAL.sub(lambda code: chr(int(code[1], 8)), field) for field in fields.split(" ")[3:5])
            mount = root / point.lstrip("/")
            # a container often sees its own group as the root of the mount, and its path as the host has it
            below = path.removeprefix(top) if path == top or path.startswith(top.rstrip("/") + "/") else ""
            yield mount, mount / below.lstrip("/"), is_v2


def _v2_quota(folder: Path) -> float | None:
    fields = " ".join(_lines(folder / "cpu.max")).split()
    return _ratio(fields[0], fields[1]) if len(fields) == 2 else None


def _v1_quota(folder: Path) -> float | None:
    quota, period = (_lines(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    """Processors; None without a limit, which is ``max`` in v2 and -1 in v1."""
    has_limit = quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0
    return int(quota) / int(period) if has_limit else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []
