"""How a decode step becomes something to replay, whether that can be had here, and what was compiled meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pss_engine.ops import lora_slices, paged_attention, store_kv
from pss_engine.ops.dispatch import REFERENCE

WARM_UPS = 2  # runs before a capture: kernels are compiled and libraries take their workspaces
KERNELS = "pss_engine.kernels."


class Graphs(Protocol):
    """Makes a step replayable."""

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Take down what ``step`` does to its tensors; the result does it again on what they hold then.

        ``step`` has no arguments, and takes every choice from what is fixed: what it reads on the host is taken down
        as it is at the capture. Its result is overwritten by the next replay.
        """


class CudaGraphs:
    """CUDA graphs on the current device; they share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate meanwhile: a state's load
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = step()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


def why_no_graphs(device: torch.device, wanted: bool) -> str:
    """Why decode steps cannot be captured on a device; an empty text if they can."""
    if not wanted:
        return "cuda_graphs is False"
    if device.type != "cuda":
        return f"made for cuda; the model is on {device.type}"
    for op in (lora_slices, paged_attention, store_kv):  # their references read sizes back to the host
        if op.backends("cuda")[:1] == [REFERENCE]:
            reasons = "; ".join(f"{backend}: {op.why('cuda')[backend]}" for backend in ("triton", "cuda"))
            return f"{op.name}: only the reference runs: {reasons}"
    return ""


def num_compiled_kernels() -> int:
    """Variants of this package's Triton kernels that this process has compiled or read from disk, for all engines."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(KERNELS)]
    kernels = {id(k): k for module in modules for k in vars(module).values() if hasattr(k, "device_caches")}
    return sum(len(cache[0]) for kernel in kernels.values() for cache in kernel.device_caches.values())
