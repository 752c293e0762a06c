"""From options to the objects that do the work. Imports torch: only from inside a command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pss_engine.cli.options import (
    GateOptions,
    KVOptions,
    ModelOptions,
    SamplingOptions,
    StoreAccess,
    StoreOptions,
    WriterOptions,
)
from pss_engine.cli.progress import loading
from pss_engine.config import EngineConfig
from pss_engine.errors import ConfigError

if TYPE_CHECKING:
    from pss_engine.engine import Engine, SamplingParams
    from pss_engine.models import LoadedModel
    from pss_engine.session import ReadoutGate
    from pss_engine.state import SessionState, StateStore
    from pss_engine.writer import WriterConfig

MAX_SLOTS = 8


def open_model(options: ModelOptions) -> LoadedModel:
    """Load the model that the options name, with progress on stderr."""
    from pss_engine.models import load_model
    from pss_engine.ops.threads import use_threads

    _check_device(options.device)
    use_threads(options.threads)
    with loading(options.model) as progress:
        return load_model(
            options.model,
            num_session_layers=options.num_session_layers,
            dtype=options.dtype,
            device=options.device,
            weights=options.weights,
            cache=options.cache,
            progress=progress,
        )


def open_engine(
    options: ModelOptions, model: LoadedModel, ranks: Iterable[int] = (), kv: KVOptions | None = None
) -> Engine:
    """An engine with slots for states of these ranks, one each."""
    from pss_engine.engine import Engine

    known = list(ranks) or [1]
    slots = min(len(known), MAX_SLOTS)
    timeline = str(kv.kv_timeline) if kv and kv.kv_timeline else ""
    config = EngineConfig(
        kv_cache_bytes=options.kv_cache_bytes,
        kv_cache_dtype=options.kv_cache_dtype,
        kv_timeline=timeline,
        num_state_slots=slots,
        state_dtype=options.state_dtype,
        max_rank=max(known),
        activations=options.activations,
    )
    return Engine(model, config)


def engine_with(options: ModelOptions, states: Iterable[SessionState], kv: KVOptions | None = None) -> Engine:
    """Model and engine with these states registered."""
    states = list(states)
    engine = open_engine(options, open_model(options), [state.max_rank for state in states], kv)
    for state in states:
        engine.add_state(state)
    return engine


def kv_budgets(options: KVOptions) -> dict[str, Any]:
    """Budgets as requests take them."""
    return {
        "max_kv_bytes": options.max_kv_bytes or None,
        "max_query_kv_bytes": options.max_query_kv_bytes or None,
        "truncate_to_kv_budget": options.truncate_to_kv_budget,
    }


def writer_config(options: WriterOptions) -> WriterConfig:
    from pss_engine.writer import WriterConfig

    return WriterConfig(**asdict(options))


def readout_gate(options: GateOptions) -> ReadoutGate:
    from pss_engine.session import ReadoutGate

    return ReadoutGate(options.min_readout_recall, options.max_retries, options.retry_steps)


def open_store(options: StoreOptions) -> StateStore:
    return open_store_at(options.store, options)


def open_store_at(folder: Path, access: StoreAccess) -> StateStore:
    """The store, or a tenant's part of it, with its key where there is one."""
    import os

    from pss_engine.state import StateKey, StateStore

    key = StateKey.load(access.key_file) if access.key_file else None
    if key is None and (text := os.environ.get("PSS_STATE_KEY")):
        key = StateKey.parse(text, "PSS_STATE_KEY")
    return StateStore(folder, tenant=access.tenant, key=key)


def sampling_params(options: SamplingOptions) -> SamplingParams:
    from pss_engine.engine import SamplingParams

    return SamplingParams(**asdict(options))


def _check_device(device: str) -> None:
    import torch

    if device == "auto":
        return
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"device {device!r} is unknown; choices: auto, cpu, cuda, cuda:0, ...") from None
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not supported; choices: auto, cpu, cuda, cuda:0, ...")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} is not to be had: torch sees no CUDA device; choices: auto, cpu")
