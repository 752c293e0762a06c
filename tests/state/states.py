"""States and adapter folders for the tests of this folder: a model of 4 layers, the last 2 of them session layers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pss_engine.state.meta import StateMeta
from pss_engine.state.session_state import SessionState
from pss_engine.state.shape import MODULE_PARENTS, StateShape, TargetKey

REPOSITORY = Path(__file__).parents[2]
HIDDEN, INTERMEDIATE, KV = 32, 48, 16
TARGETS = {
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (HIDDEN, KV),
    "v_proj": (HIDDEN, KV),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (HIDDEN, INTERMEDIATE),
    "up_proj": (HIDDEN, INTERMEDIATE),
    "down_proj": (INTERMEDIATE, HIDDEN),
}
SHAPE = StateShape(num_layers=4, targets=TARGETS, first_session_layer=2)
ALL_KEYS = tuple((layer, module) for layer in (2, 3) for module in TARGETS)
QV_KEYS = ((2, "q_proj"), (2, "v_proj"), (3, "q_proj"), (3, "v_proj"))


def make_tensors(
    keys: Iterable[TargetKey] = ALL_KEYS,
    rank: int | Mapping[TargetKey, int] = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[TargetKey, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key in keys:
        in_features, out_features = TARGETS[key[1]]
        r = rank if isinstance(rank, int) else rank[key]
        a, b = torch.randn(r, in_features, generator=generator), torch.randn(out_features, r, generator=generator)
        tensors[key] = (a.to(dtype), b.to(dtype))
    return tensors


def make_state(
    session_id: str = "alpha", alpha: float = 8.0, meta: StateMeta | None = None, **tensors: Any
) -> SessionState:
    return SessionState.from_tensors(session_id, make_tensors(**tensors), alpha, meta=meta)


def nan_tensors() -> dict[TargetKey, tuple[torch.Tensor, torch.Tensor]]:
    return {(2, "q_proj"): (torch.full((4, HIDDEN), torch.nan), torch.zeros(HIDDEN, 4))}


def same_tensors(left: SessionState, right: SessionState) -> bool:
    return left.factors.keys() == right.factors.keys() and all(
        torch.equal(pair.a, right.factors[key].a)
        and torch.equal(pair.b, right.factors[key].b)
        and pair.scaling == right.factors[key].scaling
        for key, pair in left.factors.items()
    )


def named(
    tensors: Mapping[TargetKey, tuple[torch.Tensor, torch.Tensor]], template: str = ""
) -> dict[str, torch.Tensor]:
    """Tensors by file name; ``template`` uses {layer}, {parent}, {module}, {side}. Default: PEFT's own spelling."""
    template = template or "base_model.model.model.layers.{layer}.{parent}.{module}.lora_{side}.weight"
    return {
        template.format(layer=layer, parent=MODULE_PARENTS[module], module=module, side=side): tensor
        for (layer, module), pair in tensors.items()
        for side, tensor in zip("AB", pair, strict=True)
    }


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """A folder as a stranger may write it: q_proj and v_proj of layers 2 and 3, rank 4, unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somebody/tiny",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "layers_to_transform": [2, 3],
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(dict(named(make_tensors(QV_KEYS)) if tensors is None else tensors), folder / "adapter_model.safetensors")
    return folder
