"""Any server with OpenAI's chat route as an endpoint (extra ``agents``)."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

from pss_engine.agents.endpoint import Call, Completion
from pss_engine.agents.faults import Fault
from pss_engine.errors import BackendUnavailable, ConfigError
from pss_engine.kv import CallUsage

_RETRIED = ("timeout", "connect", "http_500", "http_502", "http_503", "http_504")


class HTTPEndpoint:
    """See :class:`Endpoint`. The call's KV is (prompt + completion tokens that the server reports) x bytes per token.

    Args:
        url: up to and with ``/v1``.
        kv_bytes_per_token: of the model behind it, over its full-attention layers (``pss inspect kv`` tells it).
        timeout_s: of a whole call.
        max_reply_bytes: a longer reply is cut off and is a fault.
        max_retries: calls made again after a timeout, a refused connection or a 5xx.

    Raises:
        BackendUnavailable: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        kv_bytes_per_token: int,
        *,
        api_key: str = "",
        timeout_s: float = 120.0,
        max_reply_bytes: int = 1 << 20,
        max_retries: int = 1,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise BackendUnavailable("an HTTP endpoint needs httpx: pip install 'pss-engine[agents]'") from None
        if kv_bytes_per_token < 1:
            raise ConfigError(f"kv_bytes_per_token is {kv_bytes_per_token}; it must be at least 1")
        self._httpx, self.name, self._url = httpx, model, url.rstrip("/")
        self._bytes_per_token, self._timeout_s = kv_bytes_per_token, timeout_s
        self._max_reply_bytes, self._max_retries = max_reply_bytes, max_retries
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._ids = itertools.count()
        self.num_retries = 0

    async def complete(self, call: Call) -> Completion:
        if call.session is not None:
            raise ConfigError(f"endpoint {self._url} decodes no session states; use the engine of this process")
        for attempt in itertools.count():
            start = time.monotonic()
            try:
                reply = await asyncio.wait_for(self._post(call), self._timeout_s)
                return self._completion(call, reply, time.monotonic() - start)
            except asyncio.TimeoutError:
                fault = Fault("timeout", f"{self._url} did not answer within {self._timeout_s:g} s")
            except Fault as error:
                fault = error
            if fault.cause not in _RETRIED or attempt == self._max_retries:
                raise fault
            self.num_retries += 1
        raise AssertionError("unreachable")

    def describe(self) -> dict[str, Any]:
        return {"kind": "http", "url": self._url, "model": self.name, "kv_bytes_per_token": self._bytes_per_token}

    async def _post(self, call: Call) -> Any:
        body = {
            "model": self.name,
            "messages": [dict(message) for message in call.messages],
            "max_tokens": call.max_new_tokens,
            "temperature": call.temperature,
            "seed": call.seed,
            **({"stop": list(call.stop)} if call.stop else {}),
        }
        received = bytearray()
        try:
            # a client for each call: event loops come and go, connections must not outlive them
            async with (
                self._httpx.AsyncClient(timeout=None, headers=self._headers) as client,
                client.stream("POST", f"{self._url}/chat/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    raise Fault(f"http_{response.status_code}", f"{self._url} says {response.status_code}")
                async for part in response.aiter_bytes():
                    received += part
                    if len(received) > self._max_reply_bytes:
                        raise Fault("too_long", f"{self._url} sent more than {self._max_reply_bytes} bytes")
        except self._httpx.HTTPError as error:
            raise Fault("connect", f"{self._url}: {type(error).__name__}: {error}") from None
        try:
            return json.loads(received.decode("utf-8"))
        except UnicodeDecodeError:
            raise Fault("invalid_utf8", f"{self._url} sent bytes that are no UTF-8") from None
        except ValueError as error:
            raise Fault("invalid_reply", f"{self._url} sent no JSON: {error}") from None

    def _completion(self, call: Call, reply: Any, seconds: float) -> Completion:
        try:
            choice, tokens = reply["choices"][0], reply["usage"]
            text, reason = choice["message"]["content"], choice["finish_reason"]
            prompt, generated = tokens["prompt_tokens"], tokens["completion_tokens"]
        except (KeyError, IndexError, TypeError) as error:
            raise Fault("invalid_reply", f"{self._url}: the reply lacks {error}") from None
        if not isinstance(text, str) or type(prompt) is not int or type(generated) is not int:
            raise Fault("invalid_reply", f"{self._url}: text or token counts have a wrong type")
        usage = CallUsage(
            f"http-{next(self._ids)}",
            call.agent,
            call.query,
            prompt_tokens=prompt,
            generated_tokens=generated,
            max_new_tokens=call.max_new_tokens,
            kv_bytes_per_token=self._bytes_per_token,
            kv_declared_bytes=(prompt + call.max_new_tokens) * self._bytes_per_token,
            kv_peak_tokens=prompt + generated,
            kv_peak_bytes=(prompt + generated) * self._bytes_per_token,
        )
        return Completion(text, str(reason), usage, seconds)
