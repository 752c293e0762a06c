"""What changed from one version of a state to another."""

from __future__ import annotations

from typing import Any

import torch

from pss_engine.state.session_state import LoraFactors, SessionState

_WORDS = ("clue", "negative_clue", "readout", "base_model", "model_fingerprint", "num_history_tokens", "seed", "parent")


def compare(old: SessionState, new: SessionState) -> dict[str, Any]:
    """Two states as JSON values.

    Returns:
        ``old`` and ``new`` digests; ``changed``: name -> [before, after] of words, settings, rank and bytes;
        ``moved_by_layer``: layer -> ``||D_new - D_old||_F / ||D_old||_F`` over its modules, D = scaling B A.
    """
    before, after = _facts(old), _facts(new)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {
        "old": old.digest,
        "new": new.digest,
        "changed": {name: [before.get(name), after.get(name)] for name in names},
        "moved_by_layer": {layer: _moved(layer, old, new) for layer in sorted({*old.layers, *new.layers})},
    }


def _facts(state: SessionState) -> dict[str, Any]:
    writer = {f"writer {name}": value for name, value in state.meta.writer.items()}
    words = {name: getattr(state.meta, name) for name in _WORDS}
    return {**words, **writer, "rank": state.max_rank, "num_bytes": state.num_bytes}


def _moved(layer: int, old: SessionState, new: SessionState) -> float:
    """Norms from products of the factors [2r, 2r]: the update itself [out, in] is never formed."""
    moved = base = 0.0
    for key in {key for key in (*old.factors, *new.factors) if key[0] == layer}:
        before, after = old.factors.get(key), new.factors.get(key)
        base += _inner(before, before)
        moved += _inner(after, after) - 2 * _inner(before, after) + _inner(before, before)
    return float((max(0.0, moved) / base) ** 0.5) if base else float(moved > 0)


def _inner(left: LoraFactors | None, right: LoraFactors | None) -> float:
    """``<s B A, s' B' A'> = s s' tr((B'^T B)(A A'^T))``."""
    if left is None or right is None:
        return 0.0
    of_b = right.b.double().T @ left.b.double()
    of_a = left.a.double() @ right.a.double().T
    return left.scaling * right.scaling * float(torch.sum(of_b.T * of_a))
