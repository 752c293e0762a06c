"""Tier 2 on a Redis server (extra ``redis``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pss_engine.agents.memory.key_value import StoreDown
from pss_engine.errors import BackendUnavailable

PREFIX = "pss"


class RedisKV:
    """See :class:`KeyValueStore`. Keys are ``pss:NAMESPACE:KEY``; nothing else on the server is touched.

    Args:
        url: such as ``redis://localhost:6379/0``. The server is first spoken to when it is first used.

    Raises:
        BackendUnavailable: redis-py is not installed.
    """

    def __init__(self, url: str, timeout_s: float = 2.0) -> None:
        try:
            import redis
        except ImportError:
            raise BackendUnavailable("a Redis server needs redis: pip install 'pss-engine[redis]'") from None
        self._errors: Any = redis.RedisError
        self._client: Any = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)

    def get(self, namespace: str, key: str) -> bytes | None:
        with self._failing():
            value: bytes | None = self._client.get(_name(namespace, key))
            return value

    def put_once(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> bool:
        milliseconds = None if ttl_s is None else max(1, round(ttl_s * 1000))
        with self._failing():
            return bool(self._client.set(_name(namespace, key), value, nx=True, px=milliseconds))

    def clear(self, namespace: str) -> int:
        with self._failing():
            names = self._names(namespace)
            return int(self._client.delete(*names)) if names else 0

    def keys(self, namespace: str) -> list[str]:
        with self._failing():
            return sorted(name.decode()[len(_name(namespace, "")) :] for name in self._names(namespace))

    def close(self) -> None:
        self._client.close()

    def _names(self, namespace: str) -> list[bytes]:
        escaped = "".join(f"\\{letter}" if letter in "*?[]^-\\" else letter for letter in _name(namespace, ""))
        return list(self._client.scan_iter(match=f"{escaped}*", count=1000))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise StoreDown(f"Redis: {error}") from None


def _name(namespace: str, key: str) -> str:
    # a colon in a namespace must not let one namespace hold another
    return f"{PREFIX}:{namespace.replace('%', '%25').replace(':', '%3A')}:{key}"
