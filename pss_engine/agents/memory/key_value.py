"""Tier 2's storage: small values under a namespace and a key, written at most once, gone after their time."""

from __future__ import annotations

from typing import Protocol

from pss_engine.errors import PSSError


class StoreDown(PSSError):
    """The storage cannot be reached or does not answer; the message says why."""


class KeyValueStore(Protocol):
    """What any storage of tier 2 does.

    Every method raises StoreDown where the storage fails. Whoever reads must be ready to miss: a value may be gone
    sooner than its time, after a crash for example, but never be another than the one that was written.
    """

    def get(self, namespace: str, key: str) -> bytes | None:
        """The value; None where there is none, or its time is over."""
        ...

    def put_once(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> bool:
        """Write a value unless the key has one; True where it was written. ``ttl_s``: seconds that it lives."""
        ...

    def clear(self, namespace: str) -> int:
        """Remove all of a namespace, nothing else; how many there were."""
        ...

    def keys(self, namespace: str) -> list[str]:
        """Keys of a namespace whose values are still alive, sorted."""
        ...

    def close(self) -> None: ...
