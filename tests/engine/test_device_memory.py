"""The parts of a process's memory add up to the whole, and the KV part is what was written."""

from __future__ import annotations

import ctypes
import mmap
import platform
from pathlib import Path

import pytest
import torch

from pss_engine import process_memory as proc
from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.engine.device_memory import tensors_of
from tests.tiny import tiny_model

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
STATUS = "Name:\tpython\nVmHWM:\t    300 kB\nVmRSS:\t    200 kB\nRssFile:\t     50 kB\nThreads:\t2\n"


def test_the_parts_are_the_whole_and_the_remainder_has_a_name():
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**24))
    before = engine.device_memory()
    engine.generate([Request("x" * 400, SamplingParams(max_new_tokens=4))])
    after = engine.device_memory()
    for memory in (before, after):
        assert sum(memory.parts.values()) == memory.peak >= memory.rss >= memory.pss > 0
        assert list(memory.parts) == ["weights", "states", "kv", "cut_hidden", "activations", "files", "other"]
        assert all(value >= 0 for value in memory.parts.values())
        assert memory.machine_total > memory.machine_available > 0
        assert not memory.unified
    written = 400 * engine.memory.geometry.bytes_per_token
    # pages that malloc hands out again after others used them are resident before anything is written
    assert max(before.parts["kv"], written // 2) <= after.parts["kv"] <= after.kv_reserved
    tensors = list(tensors_of([engine.model.transformer]))
    reserved = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
    needed = sum({t.data_ptr(): t.nbytes for t in tensors}.values())
    # packed weights lie in large pieces of memory, whose rest is never written
    assert needed <= after.parts["weights"] <= reserved
    assert after.to_dict()["parts"] == after.parts


def test_pages_that_nobody_wrote_are_not_resident():
    memory = mmap.mmap(-1, 64 * mmap.PAGESIZE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    assert proc.resident_bytes(tensor.data_ptr(), tensor.nbytes) == 0
    tensor[: 3 * mmap.PAGESIZE] = 1
    assert proc.resident_bytes(tensor.data_ptr(), tensor.nbytes) == 3 * mmap.PAGESIZE
    assert proc.resident_bytes(tensor.data_ptr() + 10, 20) == 20
    assert proc.resident_bytes(tensor.data_ptr() + mmap.PAGESIZE - 1, 2 * mmap.PAGESIZE) == 2 * mmap.PAGESIZE
    assert proc.resident_bytes(tensor.data_ptr(), 0) == 0


def test_files_mapped_in_place_are_found(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    tensor = torch.from_file(str(path), shared=False, size=4 * mmap.PAGESIZE, dtype=torch.uint8)
    inside = [start <= tensor.data_ptr() < end for start, end in proc.file_ranges()]
    assert sum(inside) == 1
    assert not any(start <= torch.ones(1).data_ptr() < end for start, end in proc.file_ranges())


def test_kernel_tables_are_read_in_bytes(tmp_path, monkeypatch):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(STATUS)
    (tmp_path / "self" / "smaps_rollup").write_text("0-1 ---p 0 00:00 0 [rollup]\nPss:  150 kB\n")
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:  600 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(proc, "PROC", tmp_path)
    assert proc.process() == {"rss": 200 << 10, "pss": 150 << 10, "files": 50 << 10, "peak": 300 << 10}
    assert proc.machine() == {"total": 1000 << 10, "available": 600 << 10}
    monkeypatch.setattr(proc, "PROC", tmp_path / "none")
    assert proc.process() == {"rss": 0, "pss": 0, "files": 0, "peak": 0}
    assert not proc.reset_peak()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives memory back by itself")
def test_what_was_freed_between_things_that_stay_goes_back():
    c = ctypes.CDLL(None)
    c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [c.malloc(2**16) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 2**16)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        c.free(block)
    before = proc.process()["rss"]
    proc.give_back_freed()
    assert proc.process()["rss"] < before - 2**25
    c.free(blocks[-1])
