"""Where a run took place: device, versions, commit, command. Nothing that tells whose machine it was."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.rows import Stamp
from bench.timing import paired_seconds, quantiles

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "peft", "numpy", "triton")
MULTIPLY_ADD_ROUNDS = 1_000_000
BANDWIDTH_BYTES = 256 * 1024 * 1024


def stamp(suite: str, arguments: Sequence[str]) -> Stamp:
    """The stamp of a run that starts now."""
    import torch

    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return Stamp(
        suite=suite,
        run=uuid.uuid4().hex[:12],
        devices={kind: device(kind) for kind in kinds},
        versions=versions(),
        commit=commit(),
        command=command(arguments),
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def device(kind: str) -> dict[str, Any]:
    """Name, cores, isa (CPU) or arch (CUDA), memory in bytes, driver; and the threads that torch uses."""
    import torch

    if kind == "cuda":
        card = torch.cuda.get_device_properties(0)
        return {
            "name": card.name,
            "cores": card.multi_processor_count,
            "arch": f"sm_{card.major}{card.minor}",
            "memory": card.total_memory,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return {
        "name": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": _isa(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "driver": "",
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    import pss_engine

    found = {"pss_engine": pss_engine.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checked-out commit; ``none`` outside a repository. ``+dirty`` where the tree, but for the rows, differs."""
    head = _output("git", "rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        return "none"
    return head + ("+dirty" if _output("git", "status", "--porcelain", "--", ".", ":!bench/results") else "")


def command(arguments: Sequence[str]) -> str:
    """The command line from the repository root. Absolute paths are made relative to it; of those beside it only the
    last folder is told, since the way there is that of one machine."""
    return shlex.join(["python", "-m", "bench", *map(_told, arguments)])


def _told(argument: str) -> str:
    if not os.path.isabs(argument):
        return argument
    path = Path(argument)
    near = path.is_relative_to(ROOT) or path == ROOT.parent
    return os.path.relpath(path, ROOT) if near else f".../{path.name}"


class MemoryRead:
    """Reads 256 MiB, to be timed beside what streams weights: its limit, which another process may halve meanwhile.

    On the CPU our own reading loop or torch's sum, whichever is faster, on huge pages where there are any, as weights
    are.
    """

    def __init__(self, kind: str) -> None:
        import torch

        from pss_engine.errors import BackendUnavailable
        from pss_engine.models.memory import WeightMemory
        from pss_engine.ops.extension import load_extension

        reads: dict[str, Callable[[], object]] = {}
        if kind == "cuda":
            reads["sum"] = torch.ones(BANDWIDTH_BYTES // 4, device=kind).sum
        else:
            try:
                read, threads = load_extension().read_memory, torch.get_num_threads()
                block = WeightMemory().take(BANDWIDTH_BYTES).view(torch.float32).fill_(1.0)
                reads["loop"] = lambda: read(block.data_ptr(), block.numel(), threads)
            except BackendUnavailable:
                block = torch.ones(BANDWIDTH_BYTES // 4)
            reads["sum"] = block.sum
        synchronize = torch.cuda.synchronize if kind == "cuda" else lambda: None
        seconds = paired_seconds(reads, 7, warmup=2, synchronize=synchronize)
        self._read = reads[min(reads, key=lambda name: quantiles(seconds[name])[1])]

    def __call__(self) -> None:
        self._read()

    @staticmethod
    def gbps(seconds: Sequence[float]) -> float:
        """Of calls that took so long, the median."""
        return BANDWIDTH_BYTES / quantiles(seconds)[1] / 1e9


def peak_gflops() -> float:
    """GFLOP/s of float multiply-adds in registers on all threads that torch uses."""
    import torch

    from pss_engine.ops.extension import load_extension

    run, threads = load_extension().run_multiply_adds, torch.get_num_threads()
    seconds = paired_seconds({"peak": lambda: run(MULTIPLY_ADD_ROUNDS, threads)}, 7, warmup=2)["peak"]
    return 2 * int(run(1, threads)) * MULTIPLY_ADD_ROUNDS / quantiles(seconds)[1] / 1e9


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _isa() -> str:
    """What our own kernels run with; where they are not built, what torch's do."""
    import torch

    from pss_engine.errors import BackendUnavailable
    from pss_engine.ops.extension import load_extension

    try:
        return str(load_extension().isa())
    except BackendUnavailable:
        return torch.backends.cpu.get_cpu_capability().lower()


def _output(*arguments: str) -> str:
    try:
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


def say(line: str) -> None:
    """Progress and what was skipped go to stderr; stdout is for tables."""
    print(line, file=sys.stderr, flush=True)
