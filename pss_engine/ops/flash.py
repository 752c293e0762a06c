"""FlashAttention 2 as a backend of paged attention, where it is installed and its binary fits this torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import BackendUnavailable, ConfigError

BLOCK_MULTIPLE = 256


def _probe() -> Callable[..., Any]:
    try:
        # flash-attn-4 has the same folder and lacks this module
        if importlib.util.find_spec("flash_attn.flash_attn_interface") is None:
            raise BackendUnavailable("flash-attn has no flash_attn_interface: version 2 is needed")
    except ImportError:
        install = "pip install --no-build-isolation flash-attn"
        raise BackendUnavailable(f"flash-attn is not installed ({install})") from None
    try:
        from flash_attn.flash_attn_interface import flash_attn_varlen_func
    except (ImportError, OSError) as error:  # built for another torch or another CUDA
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackendUnavailable(f"flash-attn does not load: {reason}") from None
    attend: Callable[..., Any] = flash_attn_varlen_func
    return attend


_attend = _probe()


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Bounds come from shapes and lengths stay on the device, so that nothing is read back."""
    block_size = k_cache.shape[1]
    if block_size % BLOCK_MULTIPLE or q.dtype == torch.float32 or k_cache.dtype != q.dtype:
        raise ConfigError(
            f"paged_attention: the flash_attn backend takes blocks of a multiple of {BLOCK_MULTIPLE} and one half type,"
            f" found {block_size}, {q.dtype} and {k_cache.dtype}; choices: triton, cuda, torch"
        )
    out: Tensor = _attend(
        q,
        k_cache,
        v_cache,
        cu_seqlens_q=query_starts,
        cu_seqlens_k=F.pad(context_lens.cumsum(0, dtype=torch.int32), (1, 0)),
        max_seqlen_q=q.shape[0],
        max_seqlen_k=block_tables.shape[1] * block_size,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
        block_table=block_tables.clamp(min=0),
    )
    return out
