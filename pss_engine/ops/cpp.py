"""The ops of ``pss_engine._C``: tensors become addresses, sizes and strides."""

from __future__ import annotations

import torch

from pss_engine.errors import ConfigError
from pss_engine.ops.extension import load_extension

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_C = load_extension()


def lora_bgmv(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    scaling: torch.Tensor,
    ranks: torch.Tensor,
    slot_ids: torch.Tensor,
) -> None:
    num_slots, max_rank, in_features = lora_a.shape
    try:
        _C.lora_bgmv(
            y.data_ptr(),
            x.data_ptr(),
            lora_a.data_ptr(),
            lora_b.data_ptr(),
            scaling.data_ptr(),
            ranks.data_ptr(),
            slot_ids.data_ptr(),
            y.size(0),
            num_slots,
            max_rank,
            in_features,
            y.size(1),
            y.stride(0),
            x.stride(0),
            lora_a.stride(0),
            lora_b.stride(0),
            _DTYPES[y.dtype],
            _DTYPES[lora_a.dtype],
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
