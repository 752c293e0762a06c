"""Memory of a process that serves, beyond one that has only imported torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench.environment import ROOT
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.cpu.models import WEIGHTS

PROGRAM = """
import json, sys
import torch
def resident(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
bare = resident("VmRSS")
from bench.suites.cpu.models import packed_bytes
from bench.suites.engine.work import clue_prompt, engine_of, random_states, requests
from pss_engine.models import load_model
model = load_model(sys.argv[1], device="cpu", weights=sys.argv[2])
engine = engine_of(model, random_states(model, 4), num_state_slots=4, kv_cache_bytes=16 * 2**20)
engine.generate(requests([clue_prompt(model, i) for i in range(4)], [f"s{i}" for i in range(4)], 32))
kept = packed_bytes(model) + engine.slots.num_bytes + 16 * 2**20
print(json.dumps({"bare": bare, "steady": resident("VmRSS"), "peak": resident("VmHWM"), "kept": kept}))
"""


def run(quick: bool) -> Iterator[Measurement]:
    for weights in WEIGHTS[::3] if quick else WEIGHTS:
        command = [sys.executable, "-c", PROGRAM, MODEL, weights]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        params = {"model": MODEL, "weights": "as in the file" if weights == "auto" else weights, "states": 4}
        checked = "a measure of memory, not of speed"
        for name in ("steady", "peak"):
            beyond = found[name] - found["bare"]
            case = "a process that serves, beyond torch"
            yield Measurement(case, params, "cpp", f"{name}_bytes", "bytes", [beyond], checked)
            yield Measurement(
                case, params, "cpp", f"{name}_over_weights_kv_states", "ratio", [beyond / found["kept"]], checked
            )
