"""What can be computed: one op, one contract, a torch reference, and faster backends behind the same name.

One letter per dimension, everywhere:
    B rows, T tokens, L layers, S slots, R rank, H hidden (H_in, H_out: of a projection), N query heads, K kv heads,
    D head dim, P block size, V vocabulary.
"""

from __future__ import annotations

from pss_engine.ops.dispatch import Impl, Op
from pss_engine.ops.lora import lora_bgmv

OPS: tuple[Op, ...] = (lora_bgmv,)

__all__ = ["OPS", "Impl", "Op", "lora_bgmv"]
