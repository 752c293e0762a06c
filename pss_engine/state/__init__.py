"""Memory of a session: its state, the files it lives in, the store on disk and the slots on the device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pss_engine.state.adapter import StateRecord, load_adapter, save_adapter
    from pss_engine.state.adapter_config import AdapterConfig
    from pss_engine.state.cache import StateCache
    from pss_engine.state.counters import StateCounters
    from pss_engine.state.handle import StateHandle
    from pss_engine.state.layout import StateLayout
    from pss_engine.state.lru import SlotRef
    from pss_engine.state.meta import StateMeta
    from pss_engine.state.rows import TargetSlots
    from pss_engine.state.sealing import StateKey
    from pss_engine.state.session_state import LoraFactors, SessionState
    from pss_engine.state.shape import StateShape
    from pss_engine.state.slots import StateSlots
    from pss_engine.state.store import HeadMoved, StateStore
    from pss_engine.state.store_folder import Version
    from pss_engine.state.store_garbage import Deletion
    from pss_engine.state.store_lock import StoreLocked

_HOMES = {
    "AdapterConfig": "adapter_config",
    "Deletion": "store_garbage",
    "HeadMoved": "store",
    "LoraFactors": "session_state",
    "SessionState": "session_state",
    "SlotRef": "lru",
    "StateCache": "cache",
    "StateCounters": "counters",
    "StateHandle": "handle",
    "StateKey": "sealing",
    "StateLayout": "layout",
    "StateMeta": "meta",
    "StateRecord": "adapter",
    "StateShape": "shape",
    "StateSlots": "slots",
    "StateStore": "store",
    "StoreLocked": "store_lock",
    "TargetSlots": "rows",
    "Version": "store_folder",
    "load_adapter": "adapter",
    "save_adapter": "adapter",
}

__all__ = [
    "AdapterConfig",
    "Deletion",
    "HeadMoved",
    "LoraFactors",
    "SessionState",
    "SlotRef",
    "StateCache",
    "StateCounters",
    "StateHandle",
    "StateKey",
    "StateLayout",
    "StateMeta",
    "StateRecord",
    "StateShape",
    "StateSlots",
    "StateStore",
    "StoreLocked",
    "TargetSlots",
    "Version",
    "load_adapter",
    "save_adapter",
]


def __getattr__(name: str) -> object:
    """Import on first use, so that the torch-free modules of this package load without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
