"""Arrows go down only: imports inside pss_engine, and what kernels/ and csrc/ may know, read from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pss_engine"

# A part imports itself and parts of a lower layer, never its neighbours. errors is below config and metrics,
# which raise them; testing builds what tests need and is imported by nothing here.
LAYERS = (
    ("errors",),
    ("config", "durable", "metrics", "process_memory", "kernels"),
    ("ops",),
    ("kv", "state", "models"),
    ("engine", "writer", "retrieval"),
    ("agents", "session", "demo"),
    ("evaluation",),
    ("server", "cli"),
    ("testing",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

# Those that decide move integers; tensors are for those that compute.
DECIDERS = (
    "agents/limits.py",
    "agents/messages.py",
    "agents/replies.py",
    "agents/request.py",
    "engine/audit.py",
    "engine/budget.py",
    "engine/drafting.py",
    "engine/scheduler.py",
    "kv/account.py",
    "kv/block_pool.py",
    "kv/block_table.py",
    "kv/geometry.py",
    "kv/layers.py",
    "kv/ledger.py",
    "kv/memory.py",
    "kv/plan.py",
    "kv/prefix.py",
    "kv/proof.py",
    "kv/timeline.py",
    "kv/totals.py",
    "kv/usage.py",
    "state/lru.py",
    "state/load_books.py",
    "durable.py",
    "process_memory.py",
)

SOURCES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, at any depth of the file, with ``from a import b`` as ``a.b``."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def test_every_part_of_the_package_has_a_layer() -> None:
    assert {part_of(path) for path in SOURCES} - {"__init__"} <= set(LEVEL)


@pytest.mark.parametrize("part", sorted({part_of(path) for path in SOURCES} - {"__init__"}))
def test_a_part_imports_only_itself_and_lower_layers(part: str) -> None:
    wrong = []
    for path in SOURCES:
        if part_of(path) != part:
            continue
        for line, name in imports(path):
            head, _, rest = name.partition(".")
            other = rest.split(".")[0]
            # What the package itself exports (pss_engine.Engine) would be an import of any layer.
            if head == "pss_engine" and other not in (part, "__version__") and LEVEL.get(other, 99) >= LEVEL[part]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_imports_only_errors_when_it_is_imported() -> None:
    top = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    eager = [node.module for node in top if isinstance(node, ast.ImportFrom)]
    assert [name for name in eager if name and name.startswith("pss_engine")] == ["pss_engine.errors"]


@pytest.mark.parametrize("decider", [name for name in DECIDERS if (PACKAGE / name).exists()])
def test_those_that_decide_import_no_torch(decider: str) -> None:
    names = [name for _, name in imports(PACKAGE / decider)]
    assert not [name for name in names if name.split(".")[0] in ("torch", "numpy")]


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").glob("*.py")), ids=lambda path: path.name)
def test_kernels_import_torch_triton_and_each_other_only(path: Path) -> None:
    assert {name.split(".")[0] for _, name in imports(path)} <= {"torch", "triton", "kernels"}


def test_only_the_bindings_know_python() -> None:
    wrong = []
    for path in sorted((ROOT / "csrc").rglob("*.*")):
        for header in re.findall(r'#include\s*[<"]([^>"]+)', path.read_text(encoding="utf-8")):
            python = header == "Python.h" or header.split("/")[0] in ("pybind11", "torch", "ATen", "c10")
            if python and (path.stem not in ("bindings", "cuda_bindings") or not header.startswith("pybind11")):
                wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, "\n".join(wrong)
