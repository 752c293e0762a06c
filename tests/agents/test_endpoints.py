"""Endpoints over the real engine: in process, and through a real HTTP server that is built on it here."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pss_engine.agents import AGENTS, AgentService, Call, EngineEndpoint, Fault, HTTPEndpoint, Limits, Model
from pss_engine.agents.memory import EvidencePool, MemoryKV, TraceMemory
from pss_engine.config import EngineConfig
from pss_engine.engine import AsyncEngine, Engine
from pss_engine.errors import ConfigError
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval.stores import MemoryStore
from tests.agents.scripted import PASSAGES
from tests.agents.test_pipeline import REQUEST
from tests.retrieval.encoders import tiny_encoder
from tests.tiny import tiny_model

pytest.importorskip("httpx", reason="httpx is not installed (see the agents extra)")


def call(text: str = "Where?", agent: str = "reasoner", query: str = "q", **fields: Any) -> Call:
    return Call(agent, query, [{"role": "user", "content": text}], **{"max_new_tokens": 6, **fields})


class Chat:
    """OpenAI's chat route over an engine. ``instead``: what is sent in place of the engine's answer."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self.instead: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.bodies: list[dict[str, Any]] = []
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chat.bodies.append({"path": self.path, "auth": self.headers["Authorization"], **body})
                if chat.instead is not None:
                    chat.instead(self)
                    return
                asked = Call("", "", body["messages"], body["max_tokens"], body["temperature"], body["seed"])
                done = asyncio.run(endpoint.complete(asked))
                usage = {
                    "prompt_tokens": done.usage.prompt_tokens,
                    "completion_tokens": done.usage.generated_tokens,
                }
                choice = {"message": {"content": done.text}, "finish_reason": done.finish_reason}
                send(self, json.dumps({"choices": [choice], "usage": usage}).encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture(scope="module")
def local() -> Iterator[tuple[EngineEndpoint, Engine]]:
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**24))
    running = AsyncEngine(engine)
    yield EngineEndpoint(running, "tiny"), engine
    running.close()


@pytest.fixture
def chat(local: tuple[EngineEndpoint, Engine]) -> Iterator[Chat]:
    served = Chat(local[0])
    yield served
    served.server.shutdown()
    served.server.server_close()


def over_http(chat: Chat, **kwargs: Any) -> HTTPEndpoint:
    return HTTPEndpoint(chat.url, "tiny", 100, **kwargs)


def test_the_same_call_gives_the_same_text_in_process_and_over_http(local, chat):
    near = asyncio.run(local[0].complete(call()))
    far = asyncio.run(over_http(chat, api_key="secret").complete(call()))
    assert far.text == near.text and far.finish_reason == near.finish_reason
    assert far.usage.prompt_tokens == near.usage.prompt_tokens
    assert far.usage.kv_peak_bytes == 100 * (near.usage.prompt_tokens + near.usage.generated_tokens)
    assert far.usage.kv_declared_bytes == 100 * (near.usage.prompt_tokens + 6)
    assert (far.usage.agent, far.usage.query) == ("reasoner", "q")
    assert chat.bodies[0]["path"] == "/v1/chat/completions" and chat.bodies[0]["auth"] == "Bearer secret"


def test_calls_that_wait_together_share_the_steps_of_the_engine(local):
    endpoint, engine = local

    async def together() -> list[Any]:
        return await asyncio.gather(*[endpoint.complete(call(f"{n}?", max_new_tokens=24)) for n in range(4)])

    before = engine.counters.num_steps
    done = asyncio.run(together())
    steps = engine.counters.num_steps - before
    assert steps < sum(one.usage.generated_tokens for one in done)
    # each call was live beside another of its query, and the ledger says so
    assert max(one.usage.kv_query_peak_bytes for one in done) > max(one.usage.kv_peak_bytes for one in done)


def test_what_the_engine_refuses_is_a_fault_with_a_cause(local):
    for asked, cause in ((call("x" * 9999), "rejected"), (call(session="ghost"), "no_session")):
        with pytest.raises(Fault) as caught:
            asyncio.run(local[0].complete(asked))
        assert caught.value.cause == cause


@pytest.mark.parametrize(
    ("body", "status", "cause", "tries"),
    [
        (b"no", 500, "http_500", 2),
        (b"no", 404, "http_404", 1),
        (b"\xff\xfe{}", 200, "invalid_utf8", 1),
        (b"{", 200, "invalid_reply", 1),
        (b'{"choices": []}', 200, "invalid_reply", 1),
        (b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}', 200, "invalid_reply", 1),
        (b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1,'
         b' "completion_tokens": 1}}', 200, "invalid_reply", 1),
        (b"x" * 5000, 200, "too_long", 1),
    ],
)  # fmt: skip
def test_replies_that_are_no_replies(chat, body, status, cause, tries):
    chat.instead = lambda handler: send(handler, body, status)
    with pytest.raises(Fault) as caught:
        asyncio.run(over_http(chat, max_reply_bytes=4000).complete(call()))
    assert caught.value.cause == cause and len(chat.bodies) == tries


def test_an_answer_without_an_end_is_cut_off(chat):
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * 1024)
        except OSError:
            pass

    chat.instead = endless
    with pytest.raises(Fault) as caught:
        asyncio.run(over_http(chat, max_reply_bytes=4000).complete(call()))
    assert caught.value.cause == "too_long"


def test_a_server_that_does_not_answer_or_is_not_there(chat):
    released = threading.Event()
    chat.instead = lambda handler: released.wait(30)
    endpoint = over_http(chat, timeout_s=0.05)
    with pytest.raises(Fault, match=r"did not answer within 0\.05 s") as caught:
        asyncio.run(endpoint.complete(call()))
    released.set()
    assert caught.value.cause == "timeout" and endpoint.num_retries == 1
    with pytest.raises(Fault) as caught:
        asyncio.run(HTTPEndpoint("http://127.0.0.1:9/v1", "tiny", 1).complete(call()))
    assert caught.value.cause == "connect"


def test_one_lost_reply_is_made_up_for(chat):
    def once(handler: BaseHTTPRequestHandler) -> None:
        chat.instead = None
        send(handler, b"busy", 503)

    chat.instead = once
    endpoint = over_http(chat)
    assert asyncio.run(endpoint.complete(call())).usage.generated_tokens > 0
    assert endpoint.num_retries == 1


def test_states_are_for_the_engine_of_this_process(chat):
    with pytest.raises(ConfigError, match="decodes no session states"):
        asyncio.run(over_http(chat).complete(call(session="red")))
    with pytest.raises(ConfigError, match="kv_bytes_per_token is 0"):
        HTTPEndpoint(chat.url, "tiny", 0)


def test_small_and_large_nodes_mix_and_every_byte_is_accounted(local, chat):
    """A random model says nothing readable; the pipeline ends all the same, and its books agree with the engine's."""
    (near, engine), far = local, over_http(chat)
    encoder, counters = tiny_encoder(), AgentCounters()
    large = ("reasoner", "synthesiser")
    models = {agent: Model(far, "large") if agent in large else Model(near) for agent in AGENTS}
    service = AgentService(
        models,
        EvidencePool(MemoryStore(encoder.dim), encoder, PASSAGES, counters),
        TraceMemory(MemoryStore(encoder.dim), MemoryKV(), encoder, counters),
        MemoryKV(),
        counters,
        Limits(max_tokens={name: 4 for name in Limits().max_tokens}, max_loops=1, max_repairs=0),
    )
    record = service.answer_now(REQUEST)
    assert record.outcome in ("gave_up", "unjudged", "accepted", "failed") and record.cause != "engine"
    assert counters.num_malformed > 0
    assert {call.agent: call.model for call in record.calls}["decomposer"] == "tiny"
    per_token = engine.memory.geometry.bytes_per_token
    for used in record.usage.calls:
        stored = used.prompt_tokens + used.generated_tokens - (used.agent not in large)
        assert used.kv_peak_bytes == stored * (100 if used.agent in large else per_token)
    engine.check()
    assert engine.memory.bytes_in_use == 0
    described = service.describe()
    assert described["reasoner"]["kind"] == "http" and described["critic"] == {
        "kind": "engine", "model": "tiny", "prompts": "small"
    }  # fmt: skip
