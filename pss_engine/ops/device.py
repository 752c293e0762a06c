"""The memory of a device: how much can be had, whether it is the host's own, and what copies through it take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pss_engine.process_memory import machine

COPY_BYTES = {"cuda": 1 << 29, "cpu": 1 << 26}
REPEATS = 7


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes in all and bytes to be had now; ``integrated``: host and GPU compute on the same memory."""

    total: int
    free: int
    integrated: bool


def is_integrated(device: torch.device) -> bool:
    """Whether the driver calls a GPU integrated. Its name, its capability and the host's memory say nothing of that."""
    return device.type == "cuda" and bool(torch.cuda.get_device_properties(device).is_integrated)


def memory_of(device: torch.device) -> DeviceMemory:
    """What a device has. One budget for host and GPU where the GPU is integrated.

    There the driver counts memory as taken that the system would give back at once (its cache of files), so that the
    system is asked.
    """
    integrated = is_integrated(device)
    if device.type != "cuda" or integrated:
        host = machine()
        total, free = host["total"], host["available"]
    else:
        free, total = torch.cuda.mem_get_info(device)
    if device.type == "cuda":  # what torch keeps for its next tensors
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return DeviceMemory(total, free, integrated)


def copy_gbps(device: torch.device) -> float:
    """Bytes that a copy within the device reads and writes, in GB/s, measured now."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _median_seconds(lambda: target.copy_(source), device) / 1e9


def pinned_gbps(device: torch.device, num_bytes: int = 1 << 26) -> float:
    """Bytes that a copy from page-locked host memory brings to the device, in GB/s, measured now."""
    source = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return num_bytes / _median_seconds(lambda: target.copy_(source, non_blocking=True), device) / 1e9


def _median_seconds(run: Callable[[], object], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    seconds = []
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2]
