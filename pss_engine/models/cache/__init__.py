"""Packed models kept on disk, so that the next start reads what the kernels read and parses nothing."""

from pss_engine.models.cache.folder import CacheFolder, Entry, cache_folder
from pss_engine.models.cache.packed_cache import PackedCache, ReadyModel

__all__ = ["CacheFolder", "Entry", "PackedCache", "ReadyModel", "cache_folder"]
