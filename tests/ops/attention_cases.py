"""Cases of paged attention, shared by its tests: odd sizes, windows, groups, dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pss_engine.ops import paged_attention


@dataclass(frozen=True)
class Case:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor
    scale: float
    window: int | None

    def run(self, backend: str | None = None) -> Tensor:
        out: Tensor = paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.query_starts,
            self.context_lens,
            self.scale,
            self.window,
            backend=backend,
        )
        return out

    def expected(self) -> Tensor:
        """In float64, token by token, written as the formula is."""
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        group = self.q.shape[1] // self.k_cache.shape[2]
        for b, context in enumerate(self.context_lens.tolist()):
            start, end = self.query_starts[b : b + 2].tolist()
            k, v = (self.keys_of(cache, b).double().repeat_interleave(group, dim=1) for cache in self.caches)
            for t in range(start, end):
                position = context - end + t
                seen = slice(max(0, position + 1 - self.window) if self.window else 0, position + 1)
                scores = self.scale * torch.einsum("nd,jnd->nj", self.q[t].double(), k[seen])
                out[t] = torch.einsum("nj,jnd->nd", scores.softmax(-1), v[seen])
        return out

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.k_cache, self.v_cache

    def keys_of(self, cache: Tensor, row: int) -> Tensor:
        """[c, K, D]: what the cache holds for a row's context."""
        context = int(self.context_lens[row])
        blocks = self.block_tables[row, : -(-context // cache.shape[1])].long()
        return cache[blocks].flatten(0, 1)[:context]

    def only(self, row: int, first: int, count: int) -> Case:
        """Tokens first to first + count - 1 of a row's new ones, in a call of their own."""
        start, end = self.query_starts[row : row + 2].tolist()
        return replace(
            self,
            q=self.q[start + first : start + first + count],
            block_tables=self.block_tables[row : row + 1],
            query_starts=torch.tensor([0, count], dtype=torch.int32),
            context_lens=self.context_lens[row : row + 1] - (end - start - first - count),
        )


def make_case(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype = torch.float32,
    sharpness: float = 1.0,
) -> Case:
    """Scores have a deviation of ``sharpness``."""
    generator = torch.Generator().manual_seed(91)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    needed = [-(-context // block_size) for context in context_lens]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=generator).int()
    tables = torch.full((len(needed), max(needed) + 2), -1, dtype=torch.int32)
    k_cache, v_cache = (torch.full((num_blocks, block_size, num_kv_heads, head_dim), torch.nan) for _ in range(2))
    taken = 0
    for b, (count, context) in enumerate(zip(needed, context_lens, strict=True)):
        tables[b, :count] = order[taken : taken + count]
        for cache in (k_cache, v_cache):
            rows = torch.full((count * block_size, num_kv_heads, head_dim), torch.nan)
            rows[:context] = randn(context, num_kv_heads, head_dim)
            cache[tables[b, :count].long()] = rows.view(count, block_size, num_kv_heads, head_dim)
        taken += count
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    return Case(
        q=(randn(int(starts[-1]), num_heads, head_dim) * sharpness).to(dtype),
        k_cache=k_cache.to(cache_dtype),
        v_cache=v_cache.to(cache_dtype),
        block_tables=tables,
        query_starts=starts,
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        scale=head_dim**-0.5,
        window=window,
    )
