"""``python -m pss_engine.cli``: the same as ``pss``."""

from __future__ import annotations

import sys

from pss_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
