"""How many threads compute: one count, of the OpenMP team that torch and our kernels share."""

from __future__ import annotations

import os

import torch

from pss_engine.errors import ConfigError
from pss_engine.ops.cpu_limit import cpu_limit

MAX_THREADS = 1024


def use_threads(threads: int = 0) -> str:
    """Set the number of threads of this process; returns why it is what it is.

    Args:
        threads: how many; 0: as many as torch takes, which heeds ``OMP_NUM_THREADS``, and without that variable no
            more than the affinity mask and the container's quota allow.

    Raises:
        ConfigError: ``threads`` is out of range.
    """
    if not 0 <= threads <= MAX_THREADS:
        raise ConfigError(f"threads is {threads}; it must be 0 (what this machine allows) to {MAX_THREADS}")
    if threads:
        torch.set_num_threads(threads)
        return "asked for"
    if os.environ.get("OMP_NUM_THREADS"):
        return f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"
    limit = cpu_limit()
    if torch.get_num_threads() > limit.max_threads:
        torch.set_num_threads(limit.max_threads)
    if limit.quota is not None and torch.get_num_threads() == limit.max_threads < limit.affinity:
        return f"the cgroup's quota is {limit.quota:g} processors, rounded down"
    return f"torch's default; {limit.affinity} processors in the affinity mask"
