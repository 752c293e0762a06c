"""The memories that an engine is built of, sized for its model and its limits."""

from __future__ import annotations

from dataclasses import replace

import torch

from pss_engine.config import EngineConfig
from pss_engine.engine.cuda_graphs import CudaGraphs, Graphs, why_no_graphs
from pss_engine.errors import CapacityError, ConfigError
from pss_engine.kv import SESSION, SHARED, KVGeometry
from pss_engine.models import LoadedModel
from pss_engine.models.loader import DTYPES
from pss_engine.ops.device import memory_of
from pss_engine.state import StateSlots

ONLY_ON = {"float8_e4m3fn": ("cuda", "CUDA"), "int8": ("cpu", "the CPU")}
"""Dtypes whose kernels one type of device has."""


def kv_dtype(model: LoadedModel, config: EngineConfig) -> torch.dtype:
    """How keys and values are kept. Raises ConfigError for float8 on a device without it."""
    return _kept_in("kv_cache_dtype", config.kv_cache_dtype, model)


def kv_geometry(model: LoadedModel, config: EngineConfig) -> KVGeometry:
    num_shared, dtype = model.transformer.num_shared_layers, kv_dtype(model, config)
    return KVGeometry(
        num_layers={SHARED: num_shared, SESSION: model.config.num_layers - num_shared},
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        element_bytes=dtype.itemsize,
        block_size=config.block_size,
        hidden_bytes=model.config.hidden_size * model.dtype.itemsize,
        dtype=str(dtype).removeprefix("torch."),
    )


def check_memory(device: torch.device, kv_cache_bytes: int) -> None:
    """Raise CapacityError where a GPU has less memory to give than the KV cache is to take; the host may overcommit."""
    if device.type != "cuda":
        return
    memory = memory_of(device)
    if kv_cache_bytes > memory.free:
        owner = f"kv_cache_bytes in the memory of {device}" + (", which is the host's" if memory.integrated else "")
        raise CapacityError(owner, kv_cache_bytes, memory.free, "bytes")


def decode_graphs(model: LoadedModel, config: EngineConfig) -> tuple[Graphs | None, str]:
    """How decode steps are captured, or None and why they are not."""
    reason = why_no_graphs(model.device, config.cuda_graphs)
    return (None, reason) if reason else (CudaGraphs(), "")


def with_activations(model: LoadedModel, config: EngineConfig) -> tuple[LoadedModel, str]:
    """The model as the engine runs it, and what it takes activations in before quantised weights."""
    quantized = model.transformer.is_quantized
    if config.activations == "int8" and not quantized:
        raise ConfigError("activations 'int8' need quantised weights: a quantised GGUF file, or weights='int8'")
    if config.activations == "float32" or not quantized:
        return model, "float32"
    return replace(model, transformer=model.transformer.with_int8_rows()), "int8"


def state_dtype(model: LoadedModel, config: EngineConfig) -> torch.dtype:
    """How resident states are kept. Raises ConfigError for int8 on a GPU, whose kernels take floats."""
    return _kept_in("state_dtype", config.state_dtype, model)


def state_slots(model: LoadedModel, config: EngineConfig) -> StateSlots:
    return StateSlots(
        model.config.lora_shapes,
        model.transformer.session_layers,
        config.num_state_slots,
        config.max_rank,
        state_dtype(model, config),
        model.device,
    )


def _kept_in(setting: str, name: str, model: LoadedModel) -> torch.dtype:
    if name == "auto":
        return model.dtype
    device, called = ONLY_ON.get(name, (model.device.type, ""))
    if model.device.type != device:
        raise ConfigError(f"{setting} {name!r} is for {called}; on {model.device}: {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
