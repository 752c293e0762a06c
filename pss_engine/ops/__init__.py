"""What can be computed: one op, one contract, a torch reference, and faster backends behind the same name.

One letter per dimension, everywhere:
    B rows, T tokens, L layers, S slots, R rank, H hidden (H_in, H_out: of a projection), N query heads, K kv heads,
    D head dim, P block size, V vocabulary.
"""

from __future__ import annotations

from pss_engine.ops.attention import dense_attention, paged_attention
from pss_engine.ops.dispatch import Impl, Op
from pss_engine.ops.gather_tokens import gather_tokens
from pss_engine.ops.kv_cache import store_kv
from pss_engine.ops.linear import gather_rows, linear
from pss_engine.ops.lora import lora_bgmv
from pss_engine.ops.packed_weight import PackedWeight
from pss_engine.ops.products import Product, Products, products
from pss_engine.ops.quantized import QuantizedWeight, quantize_int8
from pss_engine.ops.retrieve_topk import retrieve_topk
from pss_engine.ops.search import DenseSearch, Retrieved, SparseSearch, rrf_shares
from pss_engine.ops.transformer import apply_rope, rms_norm, silu_mul

OPS: tuple[Op, ...] = (
    linear,
    gather_rows,
    products,
    lora_bgmv,
    paged_attention,
    store_kv,
    rms_norm,
    apply_rope,
    silu_mul,
    retrieve_topk,
)

__all__ = [
    "OPS",
    "DenseSearch",
    "Impl",
    "Op",
    "PackedWeight",
    "Product",
    "Products",
    "QuantizedWeight",
    "Retrieved",
    "SparseSearch",
    "apply_rope",
    "dense_attention",
    "gather_rows",
    "gather_tokens",
    "linear",
    "lora_bgmv",
    "paged_attention",
    "products",
    "quantize_int8",
    "retrieve_topk",
    "rms_norm",
    "rrf_shares",
    "silu_mul",
    "store_kv",
]
