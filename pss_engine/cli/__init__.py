"""The command line ``pss``: one command per file, each imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pss_engine.errors import PSSError

USAGE_ERROR, FAILED, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    0 done, 1 what was checked is not in order (or a bug in here), 2 bad input, 130 interrupted, 141 nobody reads the
    output. An error is one line on stderr; with ``--json`` also ``{"error": {"type", "message"}}`` on stdout. With
    ``PSS_DEBUG=1`` errors keep their traceback.
    """
    from cyclopts import CycloptsError

    from pss_engine.cli.app import build_app

    # threads that spin between two kernels take the cores of whoever else runs here; read when OpenMP is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    tokens = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in tokens
    try:
        code = build_app()(tokens, print_error=False, exit_on_error=False, result_action="return_value")
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # the interpreter flushes stdout once more at its end, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt as stop:
        kept = str(stop) or "nothing was changed"
        return _fail("Interrupted", f"interrupted; {kept}", INTERRUPTED, as_json)
    except (CycloptsError, PSSError) as error:
        if os.environ.get("PSS_DEBUG") == "1":
            raise
        return _fail(type(error).__name__, str(error), USAGE_ERROR, as_json)
    except OSError as error:
        if os.environ.get("PSS_DEBUG") == "1":
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _fail(type(error).__name__, f"{where}{error.strerror or error}", USAGE_ERROR, as_json)
    except Exception as error:
        if os.environ.get("PSS_DEBUG") == "1":
            raise
        message = f"internal error: {type(error).__name__}: {error} (PSS_DEBUG=1 shows the traceback)"
        return _fail(type(error).__name__, message, FAILED, as_json)


def _fail(kind: str, message: str, code: int, as_json: bool) -> int:
    from pss_engine.cli.output import emit_json

    line = " ".join(message.split())
    print(f"pss: {line}", file=sys.stderr, flush=True)
    if as_json:
        emit_json({"error": {"type": kind, "message": line}})
    return code
