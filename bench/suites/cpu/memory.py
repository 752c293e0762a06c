"""Memory of a process that serves, beyond one that has only imported torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.environment import ROOT
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.cpu.models import WEIGHTS
from bench.suites.engine.work import random_states
from pss_engine.models import load_model
from pss_engine.state import StateStore

PROGRAM = """
import json, sys
import torch
def resident(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
bare = resident("VmRSS")
from bench.suites.cpu.models import packed_bytes
from bench.suites.engine.work import RANK, clue_prompt, requests
from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.models import load_model
from pss_engine.state import StateStore
name, weights, folder, start = sys.argv[1:]
model = load_model(name, device="cpu", weights=weights, cache=start == "from the cache")
store, sessions, kv_bytes = StateStore(folder), ["s0", "s1", "s2", "s3"], 16 * 2**20
engine = Engine(model, EngineConfig(num_state_slots=4, max_rank=RANK, kv_cache_bytes=kv_bytes))
for session in sessions:
    engine.add_stored(store, session)
engine.generate(requests([clue_prompt(model, i) for i in range(4)], sessions, 32))
kept = packed_bytes(model) + engine.slots.num_bytes + kv_bytes
print(json.dumps({"bare": bare, "steady": resident("VmRSS"), "peak": resident("VmHWM"), "kept": kept}))
"""
STARTS = ("from the files", "from the cache")


def run(quick: bool) -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        store = StateStore(Path(folder))
        for state in random_states(load_model(MODEL, device="cpu"), 4):
            store.put(state)
        for weights in WEIGHTS[::3] if quick else WEIGHTS:
            load_model(MODEL, device="cpu", weights=weights)  # keeps a packed copy where there is none
            for start in STARTS:
                yield from _process(weights, folder, start)


def _process(weights: str, folder: str, start: str) -> Iterator[Measurement]:
    command = [sys.executable, "-c", PROGRAM, MODEL, weights, folder, start]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    params = {
        "model": MODEL,
        "weights": "as in the file" if weights == "auto" else weights,
        "states": 4,
        "start": start,
    }
    case, checked = "a process that serves, beyond torch", "a measure of memory, not of speed"
    for name in ("steady", "peak"):
        beyond = found[name] - found["bare"]
        ratio = beyond / found["kept"]
        yield Measurement(case, params, "cpp", f"{name}_bytes", "bytes", [beyond], checked)
        yield Measurement(case, params, "cpp", f"{name}_over_weights_kv_states", "ratio", [ratio], checked)
