"""Threads stay within what the container grants: quotas read from cgroup files as the kernel lays them out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import threads
from pss_engine.ops.cpu_limit import CPULimit, cpu_limit

V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "33 32 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct"
DISK = "24 1 253:0 / / rw,relatime - ext4 /dev/vda rw"


def system(root: Path, cgroup: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A root folder with the files of /proc and /sys that tell of quotas."""
    files = {"proc/self/cgroup": cgroup + "\n", "proc/self/mountinfo": "\n".join(mounts) + "\n", **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(root: Path, group: str = "/", **limits: str) -> Path:
    """``limits``: the content of cpu.max by depth: top, then group by group."""
    folders = [Path("sys/fs/cgroup")]
    for part in Path(group).parts[1:]:
        folders.append(folders[-1] / part)
    files = {f"{folders[int(depth[1:])]}/cpu.max": text for depth, text in limits.items()}
    return system(root, f"0::{group}", [DISK, V2_MOUNT], files)


def v1(root: Path, group: str, top: str, folder: str, quota: str, period: str = "100000\n") -> Path:
    base = f"sys/fs/cgroup/cpu,cpuacct/{folder}"
    files = {f"{base}/cpu.cfs_quota_us": quota, f"{base}/cpu.cfs_period_us": period}
    cgroup = f"12:cpuset:{group}\n4:cpu,cpuacct:{group}\n0::/"
    return system(root, cgroup, [DISK, V1_MOUNT.format(top=top)], files)


def test_a_container_of_v2_sees_its_own_quota(tmp_path: Path) -> None:
    assert cpu_limit(v2(tmp_path, d0="150000 100000\n")).quota == 1.5


def test_no_limit_in_v2(tmp_path: Path) -> None:
    assert cpu_limit(v2(tmp_path, "/user.slice", d1="max 100000\n")).quota is None


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = v2(tmp_path, "/kubepods/pod7/main", d1="800000 100000", d2="250000 100000", d3="max 100000")
    assert cpu_limit(root).quota == 2.5


def test_a_container_of_v1_sees_its_group_as_the_root_of_the_mount(tmp_path: Path) -> None:
    assert cpu_limit(v1(tmp_path, "/docker/abc", "/docker/abc", "", "300000\n")).quota == 3


def test_a_group_of_v1_below_the_mount(tmp_path: Path) -> None:
    assert cpu_limit(v1(tmp_path, "/batch", "/", "batch", "50000\n")).quota == 0.5


def test_a_group_that_the_mount_does_not_show_is_its_root(tmp_path: Path) -> None:
    assert cpu_limit(v1(tmp_path, "/docker/abc", "/", "", "200000\n")).quota == 2


@pytest.mark.parametrize("quota", ["-1\n", "", "many\n"])
def test_no_limit_in_v1(tmp_path: Path, quota: str) -> None:
    assert cpu_limit(v1(tmp_path, "/", "/", "", quota)).quota is None


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    limit = cpu_limit(tmp_path)
    assert limit == CPULimit(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"),
    [(8, None, 8), (8, 2.0, 2), (8, 1.5, 1), (8, 0.5, 1), (2, 4.0, 2), (64, 10.999, 10)],
)
def test_threads_are_the_whole_processors_of_the_quota(affinity: int, quota: float | None, expected: int) -> None:
    assert CPULimit(affinity, quota).max_threads == expected


@pytest.fixture
def torch_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variable set, three threads to begin with; as before afterwards."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(3)
    yield monkeypatch
    torch.set_num_threads(before)


def test_a_quota_lowers_the_default(torch_threads: pytest.MonkeyPatch) -> None:
    torch_threads.setattr(threads, "cpu_limit", lambda: CPULimit(8, 1.5))
    assert "1.5 processors" in threads.use_threads()
    assert torch.get_num_threads() == 1


def test_a_wide_machine_does_not_raise_what_torch_takes(torch_threads: pytest.MonkeyPatch) -> None:
    torch_threads.setattr(threads, "cpu_limit", lambda: CPULimit(64))
    assert "torch's default" in threads.use_threads()
    assert torch.get_num_threads() == 3


def test_the_variable_of_openmp_is_left_alone(torch_threads: pytest.MonkeyPatch) -> None:
    torch_threads.setenv("OMP_NUM_THREADS", "3")
    torch_threads.setattr(threads, "cpu_limit", lambda: CPULimit(8, 1.0))
    assert threads.use_threads() == "OMP_NUM_THREADS=3"
    assert torch.get_num_threads() == 3


def test_a_number_that_is_asked_for_wins_over_the_quota(torch_threads: pytest.MonkeyPatch) -> None:
    torch_threads.setattr(threads, "cpu_limit", lambda: CPULimit(8, 1.0))
    assert threads.use_threads(2) == "asked for"
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count", [-1, 5000])
def test_a_number_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"threads is {count}"):
        threads.use_threads(count)
