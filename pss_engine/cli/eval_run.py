"""From the options of ``pss eval`` to a service and a plan. Imports torch: only from inside a command."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pss_engine.cli.eval_options import AgentOptions
from pss_engine.cli.options import ModelOptions, StoreAccess

if TYPE_CHECKING:
    from pss_engine.agents import AgentService
    from pss_engine.agents.memory import KeyValueStore
    from pss_engine.evaluation.plan import RunPlan
    from pss_engine.evaluation.questions import Question
    from pss_engine.state import SessionState

_TTL_S = 7 * 24 * 3600.0


@contextmanager
def service_of(
    options: AgentOptions, access: StoreAccess, model: ModelOptions, questions: Sequence[Question]
) -> Iterator[AgentService]:
    """A service whose evidence are the passages of the questions, over an engine that ends with it."""
    from pss_engine.agents import AGENTS, AgentService, Clues, EngineEndpoint, HTTPEndpoint, Limits, Model
    from pss_engine.agents.memory import EvidencePool, TraceMemory
    from pss_engine.cli.runtime import open_engine, open_model
    from pss_engine.engine import AsyncEngine
    from pss_engine.metrics import AgentCounters
    from pss_engine.retrieval import Encoder
    from pss_engine.retrieval.stores import MemoryStore
    from pss_engine.writer import INSTRUCTION

    limits = Limits(
        threshold=options.threshold,
        max_loops=options.max_loops,
        max_questions=options.max_questions,
        max_calls=options.max_calls,
    )
    units, encoder, counters = _units(options.units), Encoder(options.encoder), AgentCounters()
    states = _states(options.store, access, questions)
    engine = open_engine(model, open_model(model), [state.max_rank for state in states])
    for state in states:
        engine.add_state(state)
    running = AsyncEngine(engine)
    try:
        small = Model(EngineEndpoint(running, model.model), options.prompts)
        large = small
        if options.large_url:
            endpoint = HTTPEndpoint(options.large_url, options.large_model, options.large_kv_bytes_per_token)
            large = Model(endpoint, options.large_prompts)
        models = {agent: large if agent in ("reasoner", "synthesiser") else small for agent in AGENTS}
        passages = [passage for question in questions for passage in question.passages]
        yield AgentService(
            models,
            EvidencePool(MemoryStore(encoder.dim), encoder, passages, counters),
            # a name of its own: another run on the same storage clears its traces, not ours
            TraceMemory(MemoryStore(encoder.dim), units, encoder, counters, f"traces-{uuid.uuid4().hex}", _TTL_S),
            units,
            counters,
            limits,
            Clues(
                small.endpoint,
                instructions={
                    state.session_id: str(state.meta.writer.get("instruction", INSTRUCTION)) for state in states
                },
            ),
        )
    finally:
        running.close()
        units.close()


def plan_of(
    service: AgentService, questions: Sequence[Question], path: Path, arms: Sequence[str], replicates: int, seed: int
) -> RunPlan:
    import platform

    import torch
    import transformers

    from pss_engine import __version__
    from pss_engine.evaluation.plan import RunPlan

    cells = [question.cell for question in questions]
    versions = {"pss_engine": __version__, "python": platform.python_version(), "torch": torch.__version__}
    limits: dict[str, Any] = asdict(service.limits)
    return RunPlan(
        tuple(arms),
        tuple(question.id for question in questions),
        replicates,
        seed,
        f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
        {cell: cells.count(cell) for cell in sorted(set(cells))},
        service.describe(),
        limits,
        {**versions, "transformers": transformers.__version__},
    )


def _states(folder: Path | None, access: StoreAccess, questions: Sequence[Question]) -> list[SessionState]:
    from pss_engine.cli.runtime import open_store_at

    sessions = sorted({question.session for question in questions} - {""})
    if folder is None or not sessions:
        return []
    store = open_store_at(folder, access)
    return [store.get(session) for session in sessions]


def _units(name: str) -> KeyValueStore:
    from pss_engine.agents.memory import MemoryKV, RedisKV, SqliteKV

    if name == "memory":
        return MemoryKV()
    if name.startswith(("redis://", "rediss://", "unix://")):
        return RedisKV(name)
    return SqliteKV(Path(name))
