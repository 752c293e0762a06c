"""``import pss_engine`` brings in nothing heavy: what needs torch is imported when it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "transformers", "numpy")
CODE = f"import sys, pss_engine; dir(pss_engine); print(*sorted({{*sys.modules}} & {{*{HEAVY}}}))"


def test_nothing_heavy_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
