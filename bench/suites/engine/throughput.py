"""Tokens per second and latency with a state for each row: ours against the peers, every ratio within one run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.environment import say
from bench.peers import start_servers
from bench.rows import Measurement
from bench.serving import Served, Server, percentile
from bench.suites import MODEL
from bench.suites.engine.work import PROMPT_TOKENS, RANK, clue_prompt, differing, engine_of, random_states, requests
from bench.suites.finding import backend
from pss_engine.models import LoadedModel
from pss_engine.models.source import resolve
from pss_engine.state import SessionState, save_adapter

PEERS = ("peft_batch", "peft_single", "vllm_cpu", "llama_cpp")
MAX_PEER_STATES = 8
CHECK_TOKENS = 8


class Ours:
    """The engine behind the peers' interface."""

    def __init__(self, model: LoadedModel, states: Sequence[SessionState]) -> None:
        self.engine = engine_of(model, states, num_state_slots=len(states), max_num_seqs=len(states))

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        start = time.perf_counter()
        outputs = self.engine.generate(requests(prompts, sessions, max_new_tokens))
        seconds = time.perf_counter() - start
        timings = [output.timings for output in outputs]
        return Served(
            [output.token_ids for output in outputs],
            [timing.time_to_first_token_s for timing in timings],
            [timing.total_s for timing in timings],
            seconds,
        )


def run(model: LoadedModel, quick: bool) -> Iterator[Measurement]:
    counts, max_new_tokens = ((1, 2, 4, 8), 16) if quick else ((1, 2, 4, 8, 16, 32), 64)
    states = random_states(model, counts[-1])
    ours = Ours(model, states)
    name = backend(ours.engine)
    servers: dict[str, Server] = {name: ours}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        shared = {s.session_id: save_adapter(s, Path(folder) / s.session_id) for s in states[:MAX_PEER_STATES]}
        for peer, server in start_servers(PEERS, resolve(MODEL), shared, PROMPT_TOKENS + max_new_tokens):
            servers[peer.NAME] = server
            if note := getattr(peer, "NOTE", ""):
                notes[peer.NAME] = note
        for count in counts:
            say(f"bench: {count} states in one batch")
            present = servers if count <= MAX_PEER_STATES else {name: ours}
            prompts = [clue_prompt(model, i) for i in range(count)]
            yield from _measure(present, notes, name, prompts, max_new_tokens)
    ours.engine.check()


def _measure(
    servers: Mapping[str, Server],
    notes: Mapping[str, str],
    ours: str,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> Iterator[Measurement]:
    sessions = [f"s{i}" for i in range(len(prompts))]
    checked = _check(servers, notes, ours, prompts, sessions)
    served: dict[str, list[Served]] = {name: [] for name in servers}
    for repeat in range(max(1, 4 // len(prompts))):
        for name in sorted(servers, reverse=bool(repeat % 2)):
            served[name].append(servers[name].serve(prompts, sessions, max_new_tokens))
    params = {
        "model": MODEL,
        "rank": RANK,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": max_new_tokens,
        "num_states": len(prompts),
    }
    for name, runs in served.items():
        yield from _rows(params, name, runs, checked[name])
        if name != ours:
            ratios = [theirs.seconds / mine.seconds for mine, theirs in zip(served[ours], runs, strict=True)]
            yield Measurement(
                "a state for each row: speed over a peer",
                {**params, "peer": name},
                ours,
                "speed",
                "ratio",
                ratios,
                checked[name],
            )


def _rows(
    params: Mapping[str, object], name: str, runs: Sequence[Served], checked: bool | str
) -> Iterator[Measurement]:
    case = "a state for each row"
    rates = [run.tokens_per_second for run in runs]
    yield Measurement(case, params, name, "tokens_per_second", "tokens/s", rates, checked)
    latencies = {
        "time_to_first_token": [seconds for run in runs for seconds in run.first_token_s],
        "time_per_token": [seconds for run in runs for seconds in run.per_token_s],
    }
    for metric, samples in latencies.items():
        if samples:
            yield Measurement(case, params, name, metric, "s", samples, checked)
            yield Measurement(
                case, params, name, f"{metric}_p99", "s", [percentile(samples, 0.99)], checked, len(samples)
            )


def _check(
    servers: Mapping[str, Server],
    notes: Mapping[str, str],
    ours: str,
    prompts: Sequence[Sequence[int]],
    sessions: Sequence[str],
) -> dict[str, bool | str]:
    """Equality of the first tokens with those of our engine, and of ours with smaller batches; warms everything."""
    found = {name: server.serve(prompts, sessions, CHECK_TOKENS).token_ids for name, server in servers.items()}
    half = (len(prompts) + 1) // 2
    parts = [
        servers[ours].serve(prompts[at : at + half], sessions[at : at + half], CHECK_TOKENS)
        for at in (0, half)[: len(prompts)]
    ]
    checked = {name: notes.get(name) or differing(tokens, found[ours]) for name, tokens in found.items()}
    checked[ours] = differing(found[ours], [tokens for part in parts for tokens in part.token_ids])
    return checked
