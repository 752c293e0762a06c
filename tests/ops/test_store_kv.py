"""store_kv: each token's keys and values land in its own row of the cache, all else stays."""

from __future__ import annotations

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import store_kv

BACKENDS = store_kv.backends("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = torch.tensor([3, 0, 19, 7])


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(91))


def caches(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Five blocks of four positions, two heads of six features."""
    return torch.full((5, 4, 2, 6), 7.0, dtype=dtype), torch.full((5, 4, 2, 6), 8.0, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
def test_rows_are_written_and_others_stay(backend: str, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    k, v = randn(2, 4, 2, 6).to(dtype)
    k_cache, v_cache = caches(cache_dtype)
    store_kv(k, v, k_cache, v_cache, ROWS, backend=backend)
    for cache, stored, before in ((k_cache, k, 7.0), (v_cache, v, 8.0)):
        rows = cache.view(20, 2, 6)
        assert torch.equal(rows[ROWS], stored.to(cache_dtype))
        rest = torch.ones(20, dtype=torch.bool).index_fill(0, ROWS, False)
        assert (rows[rest] == before).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_of_a_fused_projection(backend: str) -> None:
    fused = randn(4, 9, 6)
    k_cache, v_cache = caches()
    store_kv(fused[:, 3:5], fused[:, 7:], k_cache, v_cache, ROWS, backend=backend)
    assert torch.equal(k_cache.view(20, 2, 6)[ROWS], fused[:, 3:5])
    assert torch.equal(v_cache.view(20, 2, 6)[ROWS], fused[:, 7:])


MISUSE = {
    "past the cache": ({"kv_rows": torch.tensor([0, 1, 20, 2])}, r"kv_rows\[2\] = 20, must be 0 to 19"),
    "before the cache": ({"kv_rows": torch.tensor([-1, 1, 3, 2])}, r"kv_rows\[0\] = -1"),
    "a row too few": ({"kv_rows": torch.tensor([0, 1, 2])}, r"shapes do not fit.*kv_rows \[3\]"),
    "rows of int32": ({"kv_rows": ROWS.int()}, "dtypes do not fit.*torch.int32"),
    "another head dim": ({"k": torch.zeros(4, 2, 5)}, r"shapes do not fit: k \[4, 2, 5\]"),
    "heads apart": ({"v": torch.zeros(4, 6, 2).transpose(1, 2)}, "strides do not fit"),
    "two devices": ({"v": torch.zeros(4, 2, 6, device="meta")}, "devices do not fit.*v meta"),
    "training": ({"k": torch.zeros(4, 2, 6, requires_grad=True)}, "no gradient flows"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("misuse", MISUSE)
def test_arguments_outside_the_contract_are_refused_before_a_cache_is_touched(backend: str, misuse: str) -> None:
    changes, message = MISUSE[misuse]
    k_cache, v_cache = caches()
    arguments = {"k": randn(4, 2, 6), "v": randn(4, 2, 6), "kv_rows": ROWS, **changes}
    with pytest.raises(ConfigError, match=message):
        store_kv(arguments["k"], arguments["v"], k_cache, v_cache, arguments["kv_rows"], backend=backend)
    assert (k_cache == 7).all()
    assert (v_cache == 8).all()
