"""The command line ``pss``: one command per file. Nothing heavy is imported before a command needs it."""

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
    # Threads that spin while they wait slow everything down several times as soon as another process wants a core.
    # OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # the interpreter flushes stdout once more at its end, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _run(tokens: list[str]) -> int:
    from pss_engine.cli.app import build_app

    as_json = "--json" in tokens
    try:
        code = build_app()(tokens, print_error=False, exit_on_error=False, result_action="return_value")
        sys.stdout.flush()
        return code or 0
    except KeyboardInterrupt as stop:
        return _fail(stop, f"interrupted; {stop or 'nothing was changed'}", INTERRUPTED, as_json)
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("PSS_DEBUG") == "1":
            raise
        return _fail(error, *_explain(error), as_json)


def _explain(error: Exception) -> tuple[str, int]:
    """The message for people, and the exit code."""
    from cyclopts import CycloptsError

    if isinstance(error, (PSSError, CycloptsError)):
        return str(error), USAGE_ERROR
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", USAGE_ERROR
    return f"internal error: {type(error).__name__}: {error} (PSS_DEBUG=1 shows the traceback)", FAILED


def _fail(error: BaseException, message: str, code: int, as_json: bool) -> int:
    from pss_engine.cli.output import emit_json

    line = " ".join(message.split())
    print(f"pss: {line}", file=sys.stderr, flush=True)
    if as_json:
        emit_json({"error": {"type": type(error).__name__, "message": line}})
    return code
