"""The bytes that an engine's calls hold, counted from the tensors of its cache: slow, and without the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pss_engine.engine import Engine
from pss_engine.kv import GROUPS, SESSION, SHARED


@dataclass
class Seen:
    """What one call held at one moment, in bytes."""

    logical: int = 0
    allocated: int = 0
    exclusive: int = 0
    fraction: float = 0.0
    num_shared_blocks: int = 0


@dataclass
class Peaks:
    """The most that was seen of one call, and the sum of its charges over moments that are a second apart."""

    logical: int = 0
    allocated: int = 0
    exclusive: int = 0
    fraction: float = 0.0
    byte_seconds: int = 0
    last: Seen = field(default_factory=Seen)


def cache_of(engine: Engine):
    return engine._runner._cache


def poison(engine: Engine) -> None:
    """NaN into every row that no call has stored and no prefix is known of: whoever reads one shows it."""
    cache, cut = cache_of(engine), engine.model.transformer.num_shared_layers
    for group in GROUPS:
        pool = engine.memory.pools[group]
        layers = range(cut) if group == SHARED else range(cut, len(cache.k))
        used = torch.zeros(cache.k[0].shape[:2], dtype=torch.bool)
        for block in range(pool.num_blocks):
            used[block] = pool.is_cached(block)
        for sequence in engine._live.values():
            stored = sequence.num_shared if group == SHARED else sequence.num_stored
            for at, block in enumerate(sequence.kv.tables[group].blocks):
                used[block, : max(0, min(pool_size(engine), stored - at * pool_size(engine)))] = True
        for layer in layers:
            cache.k[layer][~used] = float("nan")
            cache.v[layer][~used] = float("nan")


def pool_size(engine: Engine) -> int:
    return engine.memory.geometry.block_size


def seen(engine: Engine) -> dict[str, Seen]:
    """Of each live call what it holds now; fails where a row that counts as stored was not written."""
    cache, cut = cache_of(engine), engine.model.transformer.num_shared_layers
    holders: dict[tuple[str, int], int] = {}
    for sequence in engine._live.values():
        for group in GROUPS:
            for block in sequence.kv.tables[group].blocks:
                holders[group, block] = holders.get((group, block), 0) + 1
    found = {}
    for call_id, sequence in engine._live.items():
        entry = found[call_id] = Seen()
        for group in GROUPS:
            layers = range(cut) if group == SHARED else range(cut, len(cache.k))
            stored = sequence.num_stored if group == SESSION else sequence.num_shared
            blocks = sequence.kv.tables[group].blocks
            for layer in layers:
                for tensor in (cache.k[layer], cache.v[layer]):
                    rows = tensor[blocks].flatten(0, 1)[:stored]
                    assert len(rows) == stored and not rows.isnan().any()
                    entry.logical += rows.nbytes
                    for block in blocks:
                        entry.allocated += tensor[block].nbytes
                        entry.fraction += tensor[block].nbytes / holders[group, block]
                        entry.exclusive += tensor[block].nbytes if holders[group, block] == 1 else 0
            entry.num_shared_blocks += sum(holders[group, block] > 1 for block in blocks)
    return found
