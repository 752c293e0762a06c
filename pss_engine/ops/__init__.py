"""What can be computed: one op, one contract, a torch reference, and faster backends behind the same name.

One letter per dimension, everywhere:
    B rows, T tokens, L layers, S slots, R rank, H hidden (H_in, H_out: of a projection), N query heads, K kv heads,
    D head dim, P block size, V vocabulary.
"""

from __future__ import annotations

from pss_engine.ops.attention import dense_attention, paged_attention
from pss_engine.ops.backward import cross_entropy, rms_norm_backward, silu_mul_backward
from pss_engine.ops.dispatch import Impl, Op
from pss_engine.ops.gather_tokens import gather_tokens
from pss_engine.ops.kv_cache import rope_store_kv, store_kv
from pss_engine.ops.linear import gather_rows, linear
from pss_engine.ops.lora import LoraSlice, lora_bgmv, lora_slices
from pss_engine.ops.masked_attention import masked_attention, masked_attention_backward
from pss_engine.ops.packed_weight import PackedWeight
from pss_engine.ops.products import Product, Products, products
from pss_engine.ops.quantized import QuantizedWeight, quantize_int8
from pss_engine.ops.retrieve_topk import retrieve_topk
from pss_engine.ops.sampling import argmax, sample_tokens
from pss_engine.ops.search import DenseSearch, Retrieved, SparseSearch, rrf_shares
from pss_engine.ops.transformer import add_rms_norm, apply_rope, rms_norm, silu_mul

OPS: tuple[Op, ...] = (
    linear,
    gather_rows,
    products,
    lora_bgmv,
    lora_slices,
    paged_attention,
    store_kv,
    rope_store_kv,
    rms_norm,
    add_rms_norm,
    apply_rope,
    silu_mul,
    rms_norm_backward,
    silu_mul_backward,
    cross_entropy,
    masked_attention,
    masked_attention_backward,
    argmax,
    sample_tokens,
    retrieve_topk,
)

__all__ = [
    "OPS",
    "DenseSearch",
    "Impl",
    "LoraSlice",
    "Op",
    "PackedWeight",
    "Product",
    "Products",
    "QuantizedWeight",
    "Retrieved",
    "SparseSearch",
    "add_rms_norm",
    "apply_rope",
    "argmax",
    "cross_entropy",
    "dense_attention",
    "gather_rows",
    "gather_tokens",
    "linear",
    "lora_bgmv",
    "lora_slices",
    "masked_attention",
    "masked_attention_backward",
    "paged_attention",
    "products",
    "quantize_int8",
    "retrieve_topk",
    "rms_norm",
    "rms_norm_backward",
    "rope_store_kv",
    "rrf_shares",
    "sample_tokens",
    "silu_mul",
    "silu_mul_backward",
    "store_kv",
]
