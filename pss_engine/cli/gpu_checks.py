"""What ``pss doctor`` says of a GPU: driver, toolkit, memory, integrated or not, and what copies reach."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

GIB = 1 << 30
DRIVER = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """Of the kernel module; empty where there is none. Jetson has no nvidia-smi to ask."""
    if DRIVER.is_file() and (found := re.search(r"\b(\d{3}\.[\d.]+)\b", DRIVER.read_text())):
        return found[1]
    if not (tool := shutil.which("nvidia-smi")):
        return ""
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else ""


def gpu_facts() -> dict[str, Any]:
    """Facts of the current CUDA device, with the bandwidths measured now."""
    import torch

    from pss_engine.ops.device import copy_gbps, memory_of, pinned_gbps

    device = torch.device("cuda", torch.cuda.current_device())
    card, memory = torch.cuda.get_device_properties(device), memory_of(device)
    return {
        "device": "cuda",
        "names": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "arch": f"sm_{card.major}{card.minor}",
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "integrated": memory.integrated,
        "memory_bytes": memory.total,
        "free_bytes": memory.free,
        "copy_gbps": round(copy_gbps(device), 1),
        "pinned_gbps": round(pinned_gbps(device), 1),
    }


def gpu_line(facts: dict[str, Any]) -> str:
    kind = "integrated: memory shared with the host" if facts["integrated"] else "discrete"
    free, total = facts["free_bytes"] / GIB, facts["memory_bytes"] / GIB
    return (
        f"cuda, {', '.join(facts['names'])}, {facts['arch']}, {kind}, CUDA {facts['cuda']}, "
        f"driver {facts['driver'] or 'unknown'}, {free:.1f} of {total:.1f} GiB free, "
        f"copy {facts['copy_gbps']} GB/s, from pinned memory {facts['pinned_gbps']} GB/s"
    )


def unused_gpu() -> str:
    """Why a GPU that the driver has is not used; empty if there is none, or torch sees it."""
    import torch

    from pss_engine.errors import PSSError
    from pss_engine.ops.extension import load_extension

    driver = driver_version()
    try:
        count = load_extension().device_count()
    except PSSError:
        count = 0
    if torch.cuda.is_available() or not (driver or count):
        return ""
    build = (
        f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else "torch is a CPU build"
    )
    return f"driver {driver or 'unknown'} is there, but torch sees no GPU: {build}"
