"""What the README says is so: its Python runs, its commands exist, and its tables come from committed rows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bench import pictures, report
from tests.real import real_model

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_runs(tmp_path, monkeypatch):
    real_model()
    monkeypatch.chdir(tmp_path)
    assert blocks("python")
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def shell_lines() -> list[list[str]]:
    return [shlex.split(line, comments=True) for block in blocks("bash") for line in block.splitlines() if line]


@pytest.mark.parametrize("line", shell_lines(), ids=" ".join)
def test_the_commands_exist(line):
    if line[0] == "make":
        assert re.search(rf"^{line[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    else:
        assert line[0] == "pss"
        from pss_engine.cli.app import build_app

        command, *_ = build_app().parse_args(line[1:], exit_on_error=False, print_error=False)
        assert command.__name__ in line


@pytest.mark.parametrize("path", ["README.md", "docs/kv_accounting.md"])
def test_the_tables_are_those_of_the_newest_rows(path):
    text = (ROOT / path).read_text("utf-8")
    suites = re.findall(r"<!-- bench:(\w+) -->", text)
    assert suites
    files = {suite: ROOT / "bench" / "results" / f"{suite}.jsonl" for suite in suites}
    folder = (ROOT / path).parent
    tables = {suite: report.of_file(file) + pictures.link(file, folder) for suite, file in files.items()}
    assert report.fill(text, tables) == text


def test_the_pictures_are_there():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text("utf-8")):
            assert (path.parent / picture).is_file(), f"{path.name} shows {picture}"
