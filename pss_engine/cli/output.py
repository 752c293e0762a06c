"""What a command prints: results on stdout (one JSON document with ``--json``), everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pss_engine.kv import QueryUsage

MIB = 1024 * 1024
PIPE_WIDTH = 120


def emit_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False), flush=True)


def note(text: str) -> None:
    """One line for people, on stderr."""
    console(sys.stderr).print(text, style="dim", soft_wrap=True)


def console(file: Any = None) -> Console:
    """A console that prints text as it is: no markup, no emoji codes, no guessed colours."""
    from rich.console import Console

    file = file or sys.stdout
    width = None if file.isatty() else PIPE_WIDTH
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def facts(rows: Iterable[tuple[str, object]]) -> Table:
    """Two columns: what, and its value."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def listing() -> Table:
    """A table with a dim header and no lines; its columns are still to be added."""
    from rich.table import Table

    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim")


def mib(num_bytes: float) -> str:
    """Bytes as text: ``12.4 MiB``; small amounts in KiB or bytes."""
    if num_bytes >= MIB / 10:
        return f"{num_bytes / MIB:.1f} MiB"
    return f"{num_bytes / 1024:.1f} KiB" if num_bytes >= 1024 else f"{num_bytes:.0f} bytes"


def cost(peak_bytes: int, cumulative_bytes: int, seconds: float) -> str:
    """What every call says of itself."""
    return f"peak KV {mib(peak_bytes)}, cumulative {mib(cumulative_bytes)}, {seconds:.2f} s"


def truncation(usage: QueryUsage) -> str:
    """What KV budgets took from the outputs; empty where they took nothing."""
    cut = sum(call.truncated_tokens for call in usage.calls)
    return f"{cut} tokens fewer than asked for, to keep the KV budget" if cut else ""


@contextmanager
def on_interrupt(kept: Callable[[], str]) -> Iterator[None]:
    """Say with Ctrl-C what is kept; ``kept`` is asked when it happens."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept()) from None
