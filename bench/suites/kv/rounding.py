"""Block sizes: what whole blocks add to each way of answering, and what that does to the comparison between them.

The tokens of every call were measured; whole blocks of another size follow from them.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites.kv.arms import ARMS, Asked
from pss_engine.kv import QueryUsage

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


def rows(asked: Asked) -> Iterator[Measurement]:
    checked = _check(asked)
    for block_size in BLOCK_SIZES:
        params = {**asked.params, "block_size": block_size}
        peaks = {arm: [peak_in_blocks(usage, block_size) for usage in asked.usages[arm]] for arm in ARMS}
        for arm in ARMS:
            added = [peak / usage.kv_peak_bytes - 1 for peak, usage in zip(peaks[arm], asked.usages[arm], strict=True)]
            yield Measurement("what whole blocks add to the peak", params, asked.backend, arm, "share", added, checked)
        ratios = [mine / rag for mine, rag in zip(peaks["decomposed"], peaks["rag"], strict=True)]
        case = "peak of decomposed over RAG, in whole blocks"
        yield Measurement(case, params, asked.backend, "peak", "ratio", ratios, checked)


def peak_in_blocks(usage: QueryUsage, block_size: int) -> int:
    """Bytes of the whole blocks of a query's largest call."""
    return max(-(-call.kv_peak_tokens // block_size) * block_size * call.kv_bytes_per_token for call in usage.calls)


def _check(asked: Asked) -> bool | str:
    """True where the same arithmetic gives what the engine allocated at its own block size."""
    calls = [call for usages in asked.usages.values() for usage in usages for call in usage.calls]
    wrong = sum(
        peak_in_blocks(QueryUsage([call]), call.kv_block_tokens) != call.kv_peak_bytes_allocated for call in calls
    )
    return not wrong or f"{wrong} of {len(calls)} calls were allocated other blocks at the engine's block size"
