from __future__ import annotations

import torch

from pss_engine.ops import gather_tokens


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_prompts_are_joined_in_order_of_rank() -> None:
    tokens, starts = ids(10, 11, 20, 30, 31, 32), torch.tensor([0, 2, 3, 3, 6])
    passages = torch.tensor([[3, 0, -1], [-1, -1, -1], [2, 1, 3]], dtype=torch.int32)
    found = gather_tokens(passages, tokens, starts, [ids(1)] * 3, [ids(2), ids(3), ids(4)], ids(8, 9))
    assert [row.tolist() for row in found] == [
        [1, 30, 31, 32, 8, 9, 10, 11, 2],
        [1, 3],
        [1, 8, 9, 20, 8, 9, 30, 31, 32, 4],
    ]
    assert {row.dtype for row in found} == {torch.int32}
