"""One contract for all storages of tier 2; a real Redis server where its program is installed."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.agents.memory import KeyValueStore, MemoryKV, RedisKV, SqliteKV, StoreDown
from tests.agents.scripted import Scripted, always, service_of
from tests.agents.test_pipeline import REQUEST

KINDS = ("memory", "sqlite", "redis")


class RedisServer:
    """A server of our own on a socket in a folder; it goes when the test goes."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed (Debian: redis-server)")
        pytest.importorskip("redis", reason="redis is not installed (see the redis extra)")
        self.socket = folder / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:  # the server says when it is ready
            if "ready to accept connections" in line.lower():
                break

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("r"))
    yield server
    server.kill()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    kinds = {
        "memory": MemoryKV,
        "sqlite": lambda: SqliteKV(tmp_path / "units.db"),
        "redis": lambda: RedisKV(request.getfixturevalue("redis_server").url),
    }
    opened = kinds[request.param]()
    yield opened
    opened.close()


def test_a_value_is_written_once(store):
    assert store.get("run", "a") is None
    assert store.put_once("run", "a", b"first\0\xff")
    assert not store.put_once("run", "a", b"second")
    assert store.get("run", "a") == b"first\0\xff"


def test_namespaces_are_apart(store):
    names = ["run", "run:a", "run%3Aa", "r*n", "r?n", ""]
    for name in names:
        assert store.put_once(name, "a:b", name.encode())
    assert [store.get(name, "a:b") for name in names] == [name.encode() for name in names]
    assert store.clear("r*n") == 1 == store.clear("r?n")
    assert [store.keys(name) for name in names] == [["a:b"]] * 3 + [[], [], ["a:b"]]


def test_of_many_writers_at_once_one_wins(store):
    won, barrier = [], threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        if store.put_once("run", "a", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and store.get("run", "a") == str(won[0]).encode()


def test_values_of_a_dead_time_are_gone_and_may_be_written_again(store):
    if isinstance(store, RedisKV):
        assert store.put_once("run", "a", b"x", ttl_s=0.001)
        ends = time.monotonic() + 5
        while store.get("run", "a") is not None:  # the server's own clock
            assert time.monotonic() < ends
    else:
        now = [100.0]
        store._clock = lambda: now[0]
        assert store.put_once("run", "a", b"x", ttl_s=5)
        now[0] = 104.9
        assert store.get("run", "a") == b"x" and not store.put_once("run", "a", b"y", ttl_s=5)
        now[0] = 105.0
    assert store.get("run", "a") is None and store.keys("run") == []
    assert store.put_once("run", "a", b"new") and store.get("run", "a") == b"new"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.binary(max_size=3)), max_size=12))
def test_sqlite_and_memory_agree(writes):
    stores = MemoryKV(), SqliteKV(Path(":memory:"))
    for namespace, key, value in writes:
        assert len({store.put_once(namespace, key, value) for store in stores}) == 1
    for namespace in "ab":
        assert len({tuple(store.keys(namespace)) for store in stores}) == 1
        assert len({tuple(store.get(namespace, key) for key in "xy") for store in stores}) == 1


def test_sqlite_outlives_its_process_and_serves_two_at_once(tmp_path):
    first, second = (SqliteKV(tmp_path / "units.db") for _ in range(2))
    assert first.put_once("run", "a", b"x") and not second.put_once("run", "a", b"y")
    first.close()
    assert second.get("run", "a") == b"x"


def test_a_file_that_is_no_database_is_down(tmp_path):
    (tmp_path / "units.db").write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(StoreDown, match="SQLite: file is not a database"):
        SqliteKV(tmp_path / "units.db")


def test_a_redis_that_was_never_there_costs_the_units_not_the_answer(tmp_path):
    pytest.importorskip("redis", reason="redis is not installed (see the redis extra)")
    store = RedisKV(f"unix://{tmp_path / 'nobody.sock'}")
    with pytest.raises(StoreDown, match="Redis: "):
        store.get("run", "a")
    service = service_of(Scripted(always()), store)
    record = service.answer_now(REQUEST)
    assert (record.outcome, record.answer) == ("accepted", "Brest")
    assert service.counters.num_unit_faults > 0 < service.counters.num_trace_faults
    assert service.counters.num_units_written == service.counters.num_traces_written == 0


def test_a_redis_that_is_killed_in_the_middle_costs_the_units_not_the_answer(redis_server):
    def script(call, before):
        if call.agent == "critic":
            redis_server.kill()
        return always()(call, before)

    service = service_of(Scripted(script), RedisKV(redis_server.url))
    record = service.answer_now(REQUEST)
    assert (record.outcome, record.answer) == ("accepted", "Brest")
    assert service.counters.num_units_written == 3 and service.counters.num_unit_faults > 0


def test_redis_serves_a_whole_query_and_touches_nothing_else(redis_server):
    import redis

    client = redis.Redis.from_url(redis_server.url)
    client.set("theirs", b"1")
    store = RedisKV(redis_server.url)
    service = service_of(Scripted(always()), store)
    assert service.answer_now(REQUEST, "mine").outcome == "accepted"
    assert len(store.keys("mine")) == service.counters.num_units_written == 9
    store.clear("mine")
    service.traces.clear()
    assert client.dbsize() == 1 and client.get("theirs") == b"1"
