"""Random states for the tiny models, as states and as PEFT sees them."""

from __future__ import annotations

import torch

from pss_engine.models import LoadedModel
from pss_engine.state import SessionState, StateMeta


def random_state(
    model: LoadedModel, session_id: str, seed: int, rank: int = 4, modules=None, layers=None
) -> SessionState:
    """A state strong enough to change what the tiny model says."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in layers or model.transformer.session_layers:
        for target in model.config.lora_targets.values():
            if modules is None or target.name in modules:
                a = torch.randn(rank, target.in_features, generator=generator) * 0.3
                b = torch.randn(target.out_features, rank, generator=generator) * 0.3
                tensors[layer, target.name] = (a, b)
    meta = StateMeta(model_fingerprint=model.fingerprint, tokenizer_fingerprint=model.tokenizer.fingerprint)
    return SessionState.from_tensors(session_id, tensors, alpha=2.0 * rank, meta=meta)
