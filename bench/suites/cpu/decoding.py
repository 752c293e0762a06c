"""Tokens per second by weight format and rows, without states and with one for each row, beside the peers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.environment import say
from bench.peers import start_servers
from bench.rows import Measurement
from bench.suites import MODEL
from bench.suites.cpu.models import Variant, variants
from bench.suites.engine.throughput import PEERS
from bench.suites.engine.work import PROMPT_TOKENS, RANK, clue_prompt, engine_of, random_states, requests, tokens_of
from pss_engine.engine import Engine
from pss_engine.models.source import resolve
from pss_engine.state import save_adapter

NUM_ROWS = (1, 2, 4, 8, 16)
PEER_ROWS = (1, 8)
REPEATS = 2
CASE = "decode"


def run(quick: bool) -> Iterator[Measurement]:
    new_tokens = 32 if quick else 64
    best: dict[int, float] = {}
    for variant in variants(quick):
        states = random_states(variant.model, NUM_ROWS[-1])
        prompts = [clue_prompt(variant.model, i) for i in range(NUM_ROWS[-1])]
        for kept_in in ("bfloat16", "int8") if variant.activations == "int8" else ("bfloat16",):
            engine = engine_of(
                variant.model,
                states,
                num_state_slots=len(states),
                activations=variant.activations,
                state_dtype=kept_in,
            )
            # the peers have the states as they were written
            fastest = best if kept_in == "bfloat16" else {}
            for rows in NUM_ROWS[::3] if quick else NUM_ROWS:
                yield from _rows(variant, engine, prompts[:rows], new_tokens, kept_in, fastest)
        yield from _prefill(variant, engine)
        last = variant
    yield from _peers(last, prompts, new_tokens, best, quick)


def _rows(
    variant: Variant,
    engine: Engine,
    prompts: Sequence[list[int]],
    new_tokens: int,
    kept_in: str,
    best: dict[int, float],
) -> Iterator[Measurement]:
    """Both in turn, so that their ratio is one of neighbours. ``kept_in``: dtype of the resident states."""
    rows = len(prompts)
    kinds: dict[str, list[str | None]] = {"none": [None] * rows, "one for each row": [f"s{i}" for i in range(rows)]}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    first: dict[str, list[list[int]]] = {}
    for repeat in range(REPEATS + 1):
        for kind, sessions in kinds.items():
            outputs = engine.generate(requests(prompts, sessions, new_tokens))
            if repeat == 0:
                first[kind] = tokens_of(outputs)
                alone = tokens_of(engine.generate(requests(prompts[-1:], sessions[-1:], new_tokens)))
                assert first[kind][-1] == alone[0], "a row of a batch has the tokens that it has alone"
            else:
                seconds[kind].append(max(output.timings.total_s for output in outputs))
    for kind, samples in seconds.items():
        params = {**variant.params, "num_rows": rows, "states": kind, "new_tokens": new_tokens, "rank": RANK}
        params["states_in"] = kept_in
        rates = [rows * new_tokens / sample for sample in samples]
        yield Measurement(CASE, params, "pss_engine (cpp)", "tokens_per_second", "tokens/s", rates, True)
        if kind != "none":
            best[rows] = max(best.get(rows, 0.0), sorted(rates)[len(rates) // 2])
            ratios = [b / a - 1 for a, b in zip(seconds["none"], samples, strict=True)]
            yield Measurement(CASE, params, "pss_engine (cpp)", "cost_of_states", "share", ratios, True)


def _prefill(variant: Variant, engine: Engine) -> Iterator[Measurement]:
    prompt = (clue_prompt(variant.model, 0) * 12)[:512]
    samples = []
    for _ in range(REPEATS):
        output = engine.generate(requests([prompt], [None], 1))[0]
        samples.append(len(prompt) / output.timings.time_to_first_token_s)
    checked = "its tokens are those of the decoding rows' check"
    params = {**variant.params, "prompt_tokens": len(prompt)}
    yield Measurement("prefill", params, "pss_engine (cpp)", "tokens_per_second", "tokens/s", samples, checked)


def _peers(
    variant: Variant, prompts: Sequence[list[int]], new_tokens: int, best: dict[int, float], quick: bool
) -> Iterator[Measurement]:
    states = random_states(variant.model, PEER_ROWS[-1])
    with tempfile.TemporaryDirectory(prefix="pss-bench-") as folder:
        adapters = {s.session_id: save_adapter(s, Path(folder) / s.session_id) for s in states}
        for peer, server in start_servers(PEERS, resolve(MODEL), adapters, PROMPT_TOKENS + new_tokens):
            say(f"bench: peer {peer.NAME}")
            note = getattr(peer, "NOTE", "") or "its own arithmetic in float32; equality is checked by the engine suite"
            for rows in PEER_ROWS:
                sessions = [f"s{i}" for i in range(rows)]
                server.serve(prompts[:rows], sessions, 4)
                rates = [
                    server.serve(prompts[:rows], sessions, new_tokens).tokens_per_second
                    for _ in range(1 if quick else REPEATS)
                ]
                params = {"model": MODEL, "num_rows": rows, "states": "one for each row", "new_tokens": new_tokens}
                yield Measurement(CASE, params, peer.NAME, "tokens_per_second", "tokens/s", rates, note)
                ratio = best[rows] / sorted(rates)[len(rates) // 2]
                yield Measurement(
                    f"{CASE}: fastest of ours over a peer",
                    {**params, "peer": peer.NAME},
                    "pss_engine (cpp)",
                    "speed",
                    "ratio",
                    [ratio],
                    note,
                )
