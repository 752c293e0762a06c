"""A writer that is killed at any moment: what it acknowledged is there, what it did not is absent or harmless."""

from __future__ import annotations

import json
import subprocess
import sys

from pss_engine.state import StateStore
from tests.state.states import REPOSITORY

NUM_KILLS = 200
# One process that forks its victims, so that none of them has to import anything before it writes.
DRIVER = """
import json, os, random, select, signal, sys, time
import torch
from pss_engine.state import StateStore
from tests.state.states import QV_KEYS, make_state

torch.set_num_threads(1)
root, num_kills = sys.argv[1], int(sys.argv[2])
states = [make_state("alpha", keys=QV_KEYS[:1], rank=1, seed=seed) for seed in range(8)]
order = [state.digest for state in states]
store, chance = StateStore(root), random.Random(5)
head, acknowledged, num_unsure, took = "", set(), 0, 0.01
for kill in range(num_kills):
    reader, writer = os.pipe()
    victim = os.fork()
    if victim == 0:
        at = order.index(head) if head else -1
        while True:
            at = (at + 1) % len(states)
            os.write(writer, (store.put(states[at]) + "\\n").encode())
    os.close(writer)
    acknowledgements, told = os.fdopen(reader), []
    for _ in range(chance.choice((0, 1, 1, 2))):
        begun = time.monotonic()
        told.append(acknowledgements.readline().strip())
        took = time.monotonic() - begun
    # then somewhere in the next put, however fast this machine is now
    select.select([], [], [], chance.uniform(0, 1.2) * took)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    told += acknowledgements.read().split()
    acknowledged |= set(told)
    last = told[-1] if told else head
    now = store.head("alpha") if "alpha" in store else ""
    following = order[(order.index(last) + 1) % len(order)] if last else order[0]
    assert now in (last, following), (kill, now, last)
    num_unsure += now != last
    assert not now or store.get("alpha").digest == now
    head = now
assert all(store.get_digest(digest).digest == digest for digest in acknowledged)
print(json.dumps({"acknowledged": sorted(acknowledged), "unsure": num_unsure, "head": head}))
"""


def test_two_hundred_kills_at_random_moments_lose_nothing_that_was_acknowledged(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "store"), str(NUM_KILLS)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=240)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    store = StateStore(tmp_path / "store")
    assert len(found["acknowledged"]) > 1
    assert store.head("alpha") == found["head"]
    store.put(store.get("alpha"))  # sweeps what the last victim left
    assert not list(store.root.rglob(".tmp-*"))
    assert not (store.root / "quarantine").exists()
    assert store.delete("alpha").left == ()
    assert [path.name for path in store.root.rglob("*") if path.is_file()] == [".lock"]
