"""What a GPU is told about its rows, and in which order; a GPU itself is asked under the gpu mark in test_slots.py."""

from __future__ import annotations

import mmap
from contextlib import contextmanager

import pytest
import torch

from pss_engine.errors import CapacityError
from pss_engine.state import page_lock
from pss_engine.state.row_order import RowOrder

CUDA = torch.device("cuda", 0)


@pytest.fixture
def calls(monkeypatch):
    """torch.cuda's streams and events, writing down what is asked of them."""
    written: list[str] = []

    class Event:
        def __init__(self, blocking):
            assert blocking, "a waiting loader must leave its core to others"

        def record(self, stream):
            self.stream = stream
            written.append(f"record on {stream.name}")

        def synchronize(self):
            written.append(f"wait for {self.stream.name}")

    class Stream:
        def __init__(self, device, name="copies"):
            self.name = name

        def wait_event(self, event):
            written.append(f"{self.name} after {event.stream.name}")

    @contextmanager
    def use(stream):
        written.append(f"enter {stream.name}")
        yield
        written.append(f"leave {stream.name}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device, "kernels"))
    return written


def write(order, calls):
    mark = order.mark()
    with order.after(mark):
        calls.append("write")
    return calls


def test_a_copy_starts_after_the_kernels_before_it_and_is_over_before_the_row_is_ready(calls):
    assert write(RowOrder(CUDA, by_host=False), calls) == [
        "record on kernels",
        "enter copies",
        "copies after kernels",
        "write",
        "record on copies",
        "wait for copies",
        "leave copies",
    ]


def test_the_host_writes_a_row_once_the_kernels_before_it_are_done(calls):
    assert write(RowOrder(CUDA, by_host=True), calls) == ["record on kernels", "wait for kernels", "write"]


@pytest.mark.parametrize("by_host", [True, False])
def test_the_cpu_has_nothing_to_wait_for(calls, by_host):
    assert write(RowOrder(torch.device("cpu"), by_host), calls) == ["write"]


class Runtime:
    def __init__(self, error=0):
        self.error, self.locked = error, {}

    def cudaHostRegister(self, address, num_bytes, flags):
        self.locked[address] = num_bytes
        return self.error

    def cudaHostUnregister(self, address):
        del self.locked[address]


def test_locked_memory_has_the_size_asked_for_and_pages_of_its_own(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = page_lock.allocate(mmap.PAGESIZE + 1)
    assert memory.numel() == mmap.PAGESIZE + 1 and memory.data_ptr() % mmap.PAGESIZE == 0
    assert runtime.locked == {memory.data_ptr(): 2 * mmap.PAGESIZE}
    allocation = memory.untyped_storage()
    assert memory.data_ptr() + 2 * mmap.PAGESIZE <= allocation.data_ptr() + allocation.nbytes()
    page_lock.unlock(memory)
    assert not runtime.locked


def test_memory_that_cannot_be_locked_says_how_much_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(error=2))
    with pytest.raises(CapacityError, match=r"page-locked host memory \(CUDA error 2\): 100 bytes needed"):
        page_lock.allocate(100)
