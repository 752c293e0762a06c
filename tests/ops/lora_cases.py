"""Inputs of lora_bgmv, shared by the tests of its backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

POPULARITIES = ("distinct", "uniform", "zipf", "identical", "skewed")
NUM_ROWS = (1, 2, 3, 7, 133)
RANKS = (1, 3, 8, 32, 33, 48, 64)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the largest update: the rounding of y, and sums in another order.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass
class Case:
    y: Tensor
    x: Tensor
    lora_a: Tensor
    lora_b: Tensor
    scaling: Tensor
    ranks: Tensor
    slot_ids: Tensor

    def args(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def expected(self) -> Tensor:
        """y after the op, in float64, written row by row."""
        y = self.y.double()
        for t, slot in enumerate(self.slot_ids.tolist()):
            if slot >= 0 and (rank := int(self.ranks[slot])):
                low = self.lora_a[slot, :rank].double() @ self.x[t].double()
                y[t] += self.scaling[slot].double() * (self.lora_b[slot, :, :rank].double() @ low)
        return y


def assert_right(case: Case, y: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().item()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=TOLERANCE[case.y.dtype] * max(scale, 1.0))


def popular_slots(popularity: str, num_rows: int, num_slots: int, generator: torch.Generator) -> Tensor:
    """A slot for each row; every fifth row, from the second on, has none."""
    if popularity == "distinct":
        slots = torch.arange(num_rows) % num_slots
    elif popularity == "identical":
        slots = torch.full((num_rows,), num_slots - 1)
    else:
        places = torch.arange(1, num_slots + 1, dtype=torch.float32)
        weights = {"uniform": torch.ones(num_slots), "zipf": 1 / places, "skewed": 0.02 ** (places - 1)}[popularity]
        slots = torch.multinomial(weights, num_rows, replacement=True, generator=generator)
    slots[1::5] = -1
    return slots.int()


def make_case(
    num_rows: int = 7,
    ranks: Sequence[int] = (32, 8, 0, 17),
    in_features: int = 100,
    out_features: int = 70,
    popularity: str = "uniform",
    dtype: torch.dtype = torch.float32,
    lora_dtype: torch.dtype = torch.float32,
) -> Case:
    """Random tensors. Beyond its rank a slot holds NaN, which no backend may read."""
    generator = torch.Generator().manual_seed(91)
    num_slots, max_rank = len(ranks), max(ranks)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    lora_a = randn(num_slots, max_rank, in_features) / in_features**0.5
    lora_b = randn(num_slots, out_features, max_rank) / max_rank**0.5
    for slot, rank in enumerate(ranks):
        lora_a[slot, rank:] = torch.nan
        lora_b[slot, :, rank:] = torch.nan
    return Case(
        y=randn(num_rows, out_features).to(dtype),
        x=randn(num_rows, in_features).to(dtype),
        lora_a=lora_a.to(lora_dtype),
        lora_b=lora_b.to(lora_dtype),
        scaling=torch.rand(num_slots, generator=generator) + 0.5,
        ranks=torch.tensor(ranks, dtype=torch.int32),
        slot_ids=popular_slots(popularity, num_rows, num_slots, generator),
    )
