"""What can be computed: one op, one contract, a torch reference, and faster backends behind the same name.

One letter per dimension, everywhere:
    B rows, T tokens, L layers, S slots, R rank, H hidden (H_in, H_out: of a projection), N query heads, K kv heads,
    D head dim, P block size, V vocabulary.
"""

from __future__ import annotations

from pss_engine.ops.attention import dense_attention, paged_attention
from pss_engine.ops.dispatch import Impl, Op
from pss_engine.ops.kv_cache import store_kv
from pss_engine.ops.linear import PackedWeight, linear
from pss_engine.ops.lora import lora_bgmv
from pss_engine.ops.products import Product, Products, products
from pss_engine.ops.transformer import apply_rope, rms_norm, silu_mul

OPS: tuple[Op, ...] = (linear, products, lora_bgmv, paged_attention, store_kv, rms_norm, apply_rope, silu_mul)

__all__ = [
    "OPS",
    "Impl",
    "Op",
    "PackedWeight",
    "Product",
    "Products",
    "apply_rope",
    "dense_attention",
    "linear",
    "lora_bgmv",
    "paged_attention",
    "products",
    "rms_norm",
    "silu_mul",
    "store_kv",
]
