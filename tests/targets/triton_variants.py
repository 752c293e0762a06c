"""Which variants of the Triton kernels are compiled for every GPU: the launches of a 7B model, and of odd sizes.

A variant takes its constants from the functions that the launches take them from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

INTEGERS = "i32"
VECTORS = {
    "block_tables": "*i32", "query_starts": "*i32", "context_lens": "*i32", "kv_rows": "*i64", "slot_ids": "*i32",
    "seeds": "*i64", "steps": "*i64", "tokens": "*i64", "where": "*i32",
}  # fmt: skip
FLOATS = {"peaks": "*fp32", "totals": "*fp32", "low": "*fp32", "cos": "*fp32", "sin": "*fp32", "mixed": "*fp32"}
FLOATS |= {"best": "*fp32", "temperatures": "*fp32", "scale_log2": "fp32", "eps": "fp32"}
for place in range(3):
    VECTORS[f"ranks{place}"] = "*i32"
    FLOATS[f"scaling{place}"] = "*fp32"
ROWS = ("q", "k", "v", "x", "y", "out", "residual", "weight", "total", "heads", "gate_up", "logits")
CACHES = ("k_cache", "v_cache")
FACTORS = ("a0", "a1", "a2", "b0", "b1", "b2")


@dataclass(frozen=True)
class Variant:
    """One compilation.

    Attributes:
        name: of the kernel and of what is special about the variant; unique.
        kernel: the function that Triton compiles.
        types: of the arguments that are not constants, as Triton writes them.
        hot: runs in every decode step: it may not spill.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)
    hot: bool = True


def types(rows: str, cache: str | None = None, factors: str | None = None, **special: str) -> dict[str, str]:
    named = dict.fromkeys(ROWS, f"*{rows}") | dict.fromkeys(CACHES, f"*{cache or rows}")
    return named | dict.fromkeys(FACTORS, f"*{factors or rows}") | VECTORS | FLOATS | special


def variants() -> Iterator[Variant]:
    yield from _lora()
    yield from _attention()
    yield from _rows()
    yield from _search()


def _lora() -> Iterator[Variant]:
    from pss_engine.kernels import lora_bgmv as lora

    for rows, factors, rank in (("bf16", "bf16", 32), ("fp16", "fp16", 64), ("fp32", "bf16", 32)):
        half = rows == factors != "fp32"
        sizes, kinds = lora.tiles(rank, half), types(rows, factors=factors)
        label = f"{rows} x {factors}, rank {rank}"
        yield Variant(f"lora shrink {label}", lora.shrink_kernel, kinds, sizes, {"num_warps": 4, "num_stages": 2}, half)
        expand = {"ROWS": lora.ROWS, "RANK": sizes["RANK"], "COLUMNS": lora.COLUMNS}
        yield Variant(
            f"lora expand {label}", lora.expand_kernel, kinds, expand, {"num_warps": 4, "num_stages": 1}, half
        )


def _attention() -> Iterator[Variant]:
    from pss_engine.kernels import paged_attention as attention

    options = {"num_warps": 4, "num_stages": 2}
    for rows, cache, head_dim, group in (
        ("bf16", "bf16", 128, 7),
        ("bf16", "u8", 128, 7),
        ("fp16", "fp16", 64, 1),
        ("fp16", "fp16", 80, 1),
        ("bf16", "bf16", 96, 3),
        ("bf16", "bf16", 128, 16),
        ("bf16", "bf16", 256, 8),
        ("fp32", "fp32", 64, 3),
    ):
        sizes = attention.tiles(group, head_dim, 4 if rows == "fp32" else 2)
        label = f"{rows}, cache {cache}, head {head_dim}, group {group}"
        for split in (True, False):
            constants = {"GROUP": group, "HEAD_DIM": head_dim, "BLOCK": 16, "PART": attention.PART}
            constants |= {"SPLIT": split, "FP8": cache == "u8", **sizes}
            kinds = types(rows, cache, out="*fp32") if split else types(rows, cache)
            name = f"attention {'part' if split else 'whole'} {label}"
            yield Variant(name, attention.attention_kernel, kinds, constants, options, split and rows != "fp32")
    for head_dim in (128, 256):
        constants = {"HEAD_DIM": head_dim, "PART": attention.PART, "FEATURES": head_dim}
        yield Variant(
            f"attention merge bf16, head {head_dim}", attention.merge_kernel, types("bf16"), constants, {"num_warps": 1}
        )


def _rows() -> Iterator[Variant]:
    from pss_engine.kernels import apply_rope, rms_norm, sample_tokens, silu_mul, store_kv

    for cache in ("bf16", "u8"):
        fp8 = cache == "u8"
        yield Variant(f"store bf16 to {cache}", store_kv.store_kernel, types("bf16", cache), {"STEP": 512, "FP8": fp8})
        constants = {"HEAD_DIM": 128, "FEATURES": 128, "FP8": fp8}
        kernel = apply_rope.rope_store_kernel
        yield Variant(f"rope and store bf16 to {cache}", kernel, types("bf16", cache), constants, {"num_warps": 1})
    constants = {"HEAD_DIM": 96, "FEATURES": 128}
    yield Variant("rope fp16, head 96", apply_rope.rope_kernel, types("fp16"), constants, {"num_warps": 1})
    for add in (False, True):
        name = "norm of a sum bf16" if add else "norm bf16"
        yield Variant(name, rms_norm.norm_kernel, types("bf16"), {"STEP": 4096, "ADD": add}, {"num_warps": 8})
    yield Variant("silu bf16", silu_mul.silu_kernel, types("bf16"), {"STEP": silu_mul.STEP}, {"num_warps": 4})
    for sampled in (False, True):
        constants = {"STRETCH": sample_tokens.STRETCH, "SAMPLED": sampled}
        name = "sample bf16" if sampled else "argmax bf16"
        yield Variant(name, sample_tokens.stretch_kernel, types("bf16"), constants, {"num_warps": 4})
    yield Variant("best", sample_tokens.best_kernel, types("fp32"), {"STRETCHES": 64}, {"num_warps": 1})


def _search() -> Iterator[Variant]:
    from pss_engine.kernels import retrieve_topk as search

    vectors = {"indptr": "*i64", "starts": "*i64", "terms": "*i32", "passages": "*i32", "weights": "*fp32"}
    vectors |= {"places": "*i32", "masks": "*u8", "mask_rows": "*i32", "scales": "*fp32", "out": "*i64"}
    for kind in ("fp16", "i8"):
        int8 = kind == "i8"
        kinds = types("fp32", **vectors, queries="*i8" if int8 else "*fp32", vectors=f"*{kind}")
        constants = {"BLOCK": search.BLOCK, "STEP": search.STEP, "INT8": int8}
        yield Variant(f"search dense {kind}", search.dense_kernel, kinds, constants, {"num_warps": 4}, False)
    kinds = types("fp32", **vectors)
    yield Variant("search sparse", search.sparse_kernel, kinds, {"BLOCK": search.BLOCK}, {"num_warps": 4}, False)
