"""Memory of a sequence: blocks, tables, tensors, and the ledger that says who held what."""

from pss_engine.kv.block_pool import BlockPool
from pss_engine.kv.block_table import BlockTable
from pss_engine.kv.cache import KVCache
from pss_engine.kv.geometry import GROUPS, SESSION, SHARED, KVGeometry
from pss_engine.kv.ledger import CallUsage, KVLedger, QueryUsage
from pss_engine.kv.memory import KVMemory, SequenceKV

__all__ = [
    "GROUPS",
    "SESSION",
    "SHARED",
    "BlockPool",
    "BlockTable",
    "CallUsage",
    "KVCache",
    "KVGeometry",
    "KVLedger",
    "KVMemory",
    "QueryUsage",
    "SequenceKV",
]
