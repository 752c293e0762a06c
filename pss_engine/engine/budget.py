"""KV budgets: what a call and its query may hold, checked before the call begins. Integers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pss_engine.errors import RequestRejected

if TYPE_CHECKING:
    from pss_engine.engine.request import Request
    from pss_engine.kv import KVGeometry


def within_budget(request: Request, num_prompt: int, max_new_tokens: int, geometry: KVGeometry, planned: int) -> int:
    """New tokens that the request's budgets allow, at most ``max_new_tokens``.

    A call may come to hold the whole blocks of ``prompt + new - 1`` tokens: the last sampled token is never stored.
    Shared blocks count in full, since whoever shares them now may leave.

    Args:
        planned: bytes that the live calls of its query may hold already.

    Raises:
        RequestRejected: a budget is too small, and the request did not ask for truncation or not even its prompt fits.
    """
    budgets = {"max_kv_bytes": (request.max_kv_bytes, 0), "max_query_kv_bytes": (request.max_query_kv_bytes, planned)}
    allowed = max_new_tokens
    for name, (limit, taken) in budgets.items():
        if limit is None or taken + geometry.held_bytes(num_prompt + allowed - 1) <= limit:
            continue
        block_bytes = geometry.held_bytes(1)
        fitting = max(0, limit - taken) // block_bytes * geometry.block_size + 1 - num_prompt
        if fitting < 1 or not request.truncate_to_kv_budget:
            raise RequestRejected(_refusal(name, limit, taken, num_prompt, allowed, max(0, fitting), geometry))
        allowed = fitting
    return allowed


def _refusal(
    name: str, limit: int, taken: int, num_prompt: int, max_new_tokens: int, fitting: int, geometry: KVGeometry
) -> str:
    needed = geometry.held_bytes(num_prompt + max_new_tokens - 1)
    others = f" beside {taken} of the query's live calls" if taken else ""
    return (
        f"{name} is {limit}; {num_prompt} prompt and {max_new_tokens} new tokens need {needed} bytes of KV{others}"
        f" (blocks of {geometry.block_size} tokens, {geometry.held_bytes(1)} bytes); {fitting} new tokens would fit"
        f"{', truncate_to_kv_budget would take them' if fitting else ''}"
    )
