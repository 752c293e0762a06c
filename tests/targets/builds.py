"""Builds for the checks of targets: tools that may be missing, compilations side by side, and what went wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Headers and libraries of other platforms that `make check-targets` fetches: never on the path of Python.
FETCHED = ROOT / "build" / "targets"
SECONDS = 600


def need(tool: str) -> str:
    """The path of a program; where it is missing the test is skipped and says so."""
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"{tool} is not installed; .ci/target-tools installs it as root where apt-get is")
    return path


def need_fetched(*parts: str) -> Path:
    path = FETCHED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"build/targets/{'/'.join(parts)} is missing; .ci/target-tools fetches it")
    return path


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **(environment or {})},
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{output[-6000:]}"
    return output


def build(
    program: Path, sources: Sequence[Path], compiler: str, flags: Sequence[str], link: Sequence[str] = ()
) -> None:
    """Compiles the sources, as many at a time as there are cores, and links them."""
    folder = program.with_suffix(".objects")
    folder.mkdir()
    objects = [folder / f"{source.parent.name}_{source.stem}.o" for source in sources]

    def compile_one(source: Path, target: Path) -> None:
        run(compiler, "-std=c++17", *flags, f"-I{ROOT}", f"-I{ROOT / 'csrc'}", "-c", source, "-o", target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_one, sources, objects))
    run(compiler, *flags, *objects, "-o", program, *link)


def native_sources() -> list[Path]:
    """The CPU kernels and their tests in C++."""
    return sorted((ROOT / "csrc" / "cpu").glob("*.cpp")) + sorted((ROOT / "tests" / "native").glob("*.cpp"))
