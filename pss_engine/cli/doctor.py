"""``pss doctor``: what this machine has, which backends run, and why the others do not."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from pss_engine.cli.options import DEFAULT_MODEL, DEFAULT_STORE, Json, ModelName, StoreFolder

Place = Literal["auto", "cpu", "cuda"]
MARKS = {"ok": ("ok", "green"), "note": ("--", "yellow"), "fail": ("no", "bold red")}


def doctor(
    *,
    model: ModelName = DEFAULT_MODEL,
    store: StoreFolder = DEFAULT_STORE,
    device: Annotated[Place, Parameter(help="Whose backends are shown; auto: CUDA where present.")] = "auto",
    as_json: Json = False,
) -> int:
    """Check this machine: versions, backends, models, store.

    Exit code 0 if the engine can run, 1 if not.
    """
    from pss_engine.cli.checks import examine
    from pss_engine.cli.output import emit_json

    checks = examine(model, store, device)
    can_run = all(check.status != "fail" for check in checks)
    if as_json:
        emit_json({"can_run": can_run, "checks": [vars(check) for check in checks]})
        return 0 if can_run else 1

    from rich.table import Table
    from rich.text import Text

    from pss_engine.cli.output import console

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = MARKS[check.status]
        table.add_row(Text(mark, style=style), check.name, check.detail)
    console().print(table)
    console().print("the engine can run" if can_run else "the engine cannot run: see the lines marked no", style="bold")
    return 0 if can_run else 1
