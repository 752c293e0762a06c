"""Who runs first, who may pass whom and how often, and what ends a wait: states, memory, priorities, deadlines."""

from __future__ import annotations

import time

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from tests.engine.adapters import random_state
from tests.engine.test_batching import engine_bytes
from tests.tiny import tiny_model

MAX_STEPS = 2000
PROMPT = "a prompt"
HOUR = 3600.0


class Watched:
    """An engine, and in what order its requests came to their first token."""

    def __init__(self, num_states=0, **config):
        self.engine = Engine(tiny_model(), EngineConfig(**{"kv_cache_bytes": 2**22, **config}))
        for i in range(num_states):
            self.engine.add_state(random_state(tiny_model(), f"s{i}", seed=i))
        self.started, self.outputs = [], {}

    def add(self, name, session=None, prompt=PROMPT, max_new_tokens=4, **request):
        def on_text(_):
            if name not in self.started:
                self.started.append(name)

        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        self.engine.add(Request(prompt, params, session=session, request_id=name, **request), on_text)

    def step(self):
        """One step; where nothing can run before a state is loaded, waits for it."""
        outputs = self.engine.step()
        if not outputs and not self.engine.num_running:
            self.engine.slots.wait(0.1)
        self.outputs.update({output.request_id: output for output in outputs})
        return outputs

    def step_until(self, *names):
        """Step until these have their first token."""
        for _ in range(MAX_STEPS):
            if set(names) <= set(self.started):
                return
            self.step()
        raise AssertionError(f"{names} did not all start in {MAX_STEPS} steps; started: {self.started}")

    def finish(self):
        for _ in range(MAX_STEPS):
            if not self.engine.num_unfinished:
                self.engine.check()
                return
            self.step()
        raise AssertionError(f"{self.engine.num_unfinished} requests did not end in {MAX_STEPS} steps")


@pytest.mark.parametrize("max_overtakes", [0, 1, 5])
def test_a_hot_state_passes_a_cold_one_so_often_and_no_more(max_overtakes):
    watched = Watched(num_states=2, num_state_slots=1, max_overtakes=max_overtakes)
    watched.add("hot before", "s0", max_new_tokens=40)
    watched.step_until("hot before")
    watched.add("cold", "s1")
    for i in range(20):
        watched.add(f"hot {i}", "s0", max_new_tokens=40)
    watched.step_until("cold")
    assert len(watched.started[: watched.started.index("cold")]) - 1 == max_overtakes
    watched.finish()
    assert len(watched.outputs) == 22


def test_a_stream_that_never_ends_starves_nobody():
    """A hot request comes in every step, and each outlives the next: without a bound, the slot would never be free."""
    watched = Watched(num_states=3, num_state_slots=1, max_overtakes=4, max_queued=10_000)
    for i in range(120):
        watched.add(f"hot {i}", "s0", max_new_tokens=6)
        if i == 5:
            watched.add("cold", "s1")
            watched.add("colder", "s2")
        watched.step()
    assert {"cold", "colder"} <= set(watched.outputs)
    assert watched.started.index("cold") < watched.started.index("colder")
    watched.finish()


def test_base_rows_are_never_held_up_by_a_cold_state():
    watched = Watched(num_states=2, num_state_slots=1, max_overtakes=0)
    watched.add("hot", "s0", max_new_tokens=60)
    watched.step_until("hot")
    watched.add("cold", "s1")
    watched.step()
    for i in range(5):
        watched.add(f"base {i}")
        watched.step()
        assert watched.started[-1] == f"base {i}", "a base row starts in the step after it came"
    assert "cold" not in watched.started
    watched.finish()


def test_a_resident_state_goes_on_while_another_waits_for_a_slot():
    watched = Watched(num_states=2, num_state_slots=1, max_overtakes=8)
    watched.add("hot 0", "s0", max_new_tokens=60)
    watched.step_until("hot 0")
    watched.add("cold", "s1")
    watched.add("hot 1", "s0")
    watched.step_until("hot 1")
    assert "cold" not in watched.started
    watched.finish()


def test_the_larger_priority_goes_first_and_equal_ones_in_order_of_arrival():
    watched = Watched(max_num_seqs=1)
    watched.add("running")
    watched.step_until("running")
    for name, priority in (("low", -1), ("first", 0), ("high", 7), ("second", 0)):
        watched.add(name, priority=priority)
    watched.finish()
    assert watched.started == ["running", "high", "first", "second", "low"]


def test_a_priority_does_not_lift_the_bound_of_the_fair():
    """Requests of a larger priority come before the cold one; those admitted past it are counted all the same."""
    watched = Watched(num_states=2, num_state_slots=1, max_overtakes=2, max_num_seqs=3)
    watched.add("hot before", "s0", max_new_tokens=30)
    watched.step_until("hot before")
    watched.add("cold", "s1", priority=5)
    for i in range(8):
        watched.add(f"hot {i}", "s0", max_new_tokens=30)
    watched.step_until("cold")
    assert watched.started == ["hot before", "hot 0", "hot 1", "cold"]
    watched.finish()


def test_a_request_too_large_for_what_is_free_is_not_passed_by_small_ones():
    watched = Watched(kv_cache_bytes=engine_bytes(tiny_model(), 20), block_size=4, prefix_caching=False)
    watched.add("running", prompt="x" * 40, max_new_tokens=12)
    watched.step_until("running")
    watched.add("large", prompt="y" * 60, max_new_tokens=2)
    for i in range(3):
        watched.add(f"small {i}", prompt="z", max_new_tokens=2)
    watched.finish()
    assert watched.started[:2] == ["running", "large"]


class Clock:
    """The monotonic clock, which can be set forward; hours, so that what a test takes does not count."""

    def __init__(self):
        self._true, self._ahead = time.monotonic, 0.0

    def __call__(self):
        return self._true() + self._ahead

    def forward(self, hours):
        self._ahead += hours * HOUR


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_deadline_ends_a_running_request_with_what_it_has(clock):
    watched = Watched()
    watched.add("late", max_new_tokens=40, deadline_s=2 * HOUR)
    watched.add("free", max_new_tokens=40)
    watched.step_until("late", "free")
    clock.forward(hours=1)
    assert watched.step() == []
    clock.forward(hours=1)
    (output,) = watched.step()
    assert (output.request_id, output.finish_reason, len(output.token_ids)) == ("late", "deadline", 2)
    assert 2 * HOUR <= output.timings.total_s < 3 * HOUR
    watched.finish()
    assert len(watched.outputs["free"].token_ids) == 40
    assert watched.engine.counters.num_expired == 1


def test_a_deadline_ends_a_wait_for_a_state_and_the_others_move_up(clock):
    watched = Watched(num_states=2, num_state_slots=1, max_overtakes=0)
    watched.add("hot", "s0", max_new_tokens=60)
    watched.step_until("hot")
    watched.add("cold", "s1", deadline_s=HOUR)
    watched.add("behind", "s0")
    watched.step()
    assert watched.started == ["hot"]
    clock.forward(hours=1)
    watched.step()
    assert watched.outputs["cold"].finish_reason == "deadline"
    assert watched.outputs["cold"].token_ids == []
    assert watched.started == ["hot", "behind"]
    watched.finish()


def test_a_deadline_ends_a_wait_for_memory(clock):
    watched = Watched(max_num_seqs=1)
    watched.add("running", max_new_tokens=20)
    watched.add("waiting", deadline_s=HOUR)
    watched.step()
    clock.forward(hours=1)
    watched.finish()
    assert watched.outputs["waiting"].finish_reason == "deadline"
    assert watched.started == ["running"]


def test_memory_and_slots_are_kept_to_together_and_everyone_gets_his_tokens():
    model = tiny_model()
    limits = {"kv_cache_bytes": engine_bytes(model, 22), "block_size": 4, "num_state_slots": 2, "max_overtakes": 3}
    tight, roomy = Watched(num_states=5, **limits), Watched(num_states=5, num_state_slots=5)
    sessions = ["s0", None, "s1", "s2", "s3", "s0", None, "s4", "s1", "s0", "s3", "s2"]
    for watched in (tight, roomy):
        for i, session in enumerate(sessions):
            watched.add(f"r{i}", session, prompt=PROMPT * (1 + i % 3), max_new_tokens=12, priority=i % 2)
    most_states = 0
    while tight.engine.num_unfinished:
        tight.step()
        tight.engine.check()
        in_use = {s.state.digest for s in tight.engine._scheduler.running if s.state}
        most_states = max(most_states, len(in_use))
        assert tight.engine.memory.bytes_in_use <= limits["kv_cache_bytes"]
    roomy.finish()
    assert most_states == 2
    assert tight.engine.counters.num_preemptions > 0
    tokens = [{name: output.token_ids for name, output in w.outputs.items()} for w in (tight, roomy)]
    assert tokens[0] == tokens[1]
