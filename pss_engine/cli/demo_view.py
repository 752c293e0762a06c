"""How the demo looks on a terminal: one block per follow-up, its sessions below each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pss_engine.cli.demo_run import Asked, Written, is_gold
from pss_engine.cli.output import cost, mib

if TYPE_CHECKING:
    from pss_engine.models import LoadedModel
    from pss_engine.retrieval import Corpus
    from pss_engine.session import Evidence

FOUND, MISSED = Text("✓", style="bold green"), Text("✗", style="red")
MAX_TEXT = 160


def opening(model: LoadedModel, corpus: Corpus) -> Text:
    shared, session = model.transformer.num_shared_layers, len(model.transformer.session_layers)
    facts = f"  {model.name} on {model.device}, {shared} shared + {session} session layers, {len(corpus)} passages"
    return Text("pss demo", style="bold").append(facts, style="dim not bold")


def states(written: Sequence[Written]) -> Table:
    """What each history became, and what its state says before any question."""
    table = _grid()
    for one in written:
        meta, size = one.state.meta, mib(one.state.num_bytes)
        table.add_row(
            "",
            _name(one.state.session_id),
            f"{meta.num_history_tokens} tokens of talk -> {size} in {one.seconds:.0f} s",
        )
        table.add_row("", "says", Text(_short(meta.readout), style="cyan"))
    return table


def followup(batch: Sequence[Asked]) -> Table:
    """All sessions that were asked with the same words, after one line for the words themselves."""
    table = _grid()
    gold = [passage_id for asked in batch for passage_id in asked.followup.gold]
    _searched(table, "raw query", batch[0].raw, any(asked.ranks["raw"] for asked in batch), gold)
    for asked in batch:
        own, wrong, gold = asked.own, asked.wrong, list(asked.followup.gold)
        table.add_row("", _name(asked.followup.session_id), Text(f"clue: {_short(own.clue.text)}", style="cyan"))
        _searched(table, "found", own.evidence, bool(asked.ranks["clue"]), gold)
        table.add_row("", "answer", _short(own.text))
        price = cost(own.usage.kv_peak_bytes, own.usage.kv_cumulative_bytes, own.seconds)
        table.add_row("", "cost", Text(price, style="dim"))
        _searched(table, f"{wrong.session_id}'s state", wrong.evidence, bool(asked.ranks["wrong"]), gold)
    return table


def heading(batch: Sequence[Asked]) -> Text:
    text = Text(f"\n“{batch[0].followup.query}”", style="bold")
    return text.append(f"  {len(batch)} sessions, right and wrong states, one batch", style="dim not bold")


def _grid() -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(width=16, style="dim", overflow="ellipsis", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _searched(table: Table, label: str, evidence: Evidence, is_found: bool, gold: Sequence[str]) -> None:
    ids = [Text(passage.id, style="bold green" if is_gold(passage, gold) else "") for passage in evidence.passages]
    table.add_row(FOUND if is_found else MISSED, label, Text("  ").join(ids) if ids else "nothing")


def _name(session_id: str) -> Text:
    return Text(session_id, style="bold not dim")


def _short(text: str) -> str:
    return textwrap.shorten(" ".join(text.split()), MAX_TEXT, placeholder=" …") or "(nothing)"
