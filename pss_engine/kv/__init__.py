"""Memory of a sequence: blocks, tables, tensors, and the ledger that says who held what."""

from pss_engine.kv.block_pool import BlockPool
from pss_engine.kv.block_table import BlockTable
from pss_engine.kv.cache import KVCache
from pss_engine.kv.geometry import GROUPS, SESSION, SHARED, KVGeometry
from pss_engine.kv.layers import ModelKV
from pss_engine.kv.ledger import KVLedger
from pss_engine.kv.memory import KVMemory, SequenceKV
from pss_engine.kv.plan import KVPlan
from pss_engine.kv.timeline import Timeline
from pss_engine.kv.usage import CallUsage, GroupUsage, QueryUsage

__all__ = [
    "GROUPS",
    "SESSION",
    "SHARED",
    "BlockPool",
    "BlockTable",
    "CallUsage",
    "GroupUsage",
    "KVCache",
    "KVGeometry",
    "KVLedger",
    "KVMemory",
    "KVPlan",
    "ModelKV",
    "QueryUsage",
    "SequenceKV",
    "Timeline",
]
