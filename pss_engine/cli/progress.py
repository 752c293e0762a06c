"""Progress of the long parts, on stderr: a bar on a terminal, one line when done elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pss_engine.cli.output import console, note

if TYPE_CHECKING:
    from pss_engine.writer.writer import Progress as WriterProgress

PHASES = {"history": "reading the history", "readout": "learning the clue"}


@contextmanager
def loading(name: str) -> Iterator[Callable[[int, int], None]]:
    """``progress(layers done, layers)`` while a model is loaded."""
    if not sys.stderr.isatty():
        start = time.monotonic()
        yield lambda done, total: None
        note(f"loaded {name} in {time.monotonic() - start:.1f} s")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("layers")
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(f"loading {name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def counting(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """``progress(done, total)`` of a long part that may not come; then nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()]
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


@contextmanager
def writing(session_id: str) -> Iterator[WriterProgress]:
    """The writer's progress: phase, updates, loss, time left."""
    if not sys.stderr.isatty():
        start = time.monotonic()
        yield lambda phase, done, total, loss: None
        note(f"wrote {session_id} in {time.monotonic() - start:.1f} s")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TextColumn("loss {task.fields[loss]:.2f}"), TimeRemainingColumn()]
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        tasks = {
            phase: bar.add_task(f"{session_id}: {text}", total=None, loss=0.0, start=False, visible=False)
            for phase, text in PHASES.items()
        }

        def progress(phase: str, done: int, total: int, loss: float) -> None:
            if done == 1:
                bar.start_task(tasks[phase])
            bar.update(tasks[phase], completed=done, total=total, loss=loss, visible=True)

        yield progress
