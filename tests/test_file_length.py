"""No source file is longer than 400 lines: one file, one job."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("pss_engine", "kernels", "csrc", "bench", "tests")
SUFFIXES = {".py", ".cpp", ".h", ".inc", ".cu", ".cuh"}
MAX_LINES = 400


def test_no_source_file_is_longer_than_the_limit() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    assert len(files) > 20
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in [*files, ROOT / "setup.py"]}
    assert not {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > MAX_LINES}
