"""Replayed decode steps give the tokens of eager ones; what is replayed reads nothing but its buffers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.engine.cuda_graphs import num_compiled_kernels, why_no_graphs
from pss_engine.engine.graph_runner import batch_sizes
from pss_engine.models import load_model
from tests.engine.adapters import random_state
from tests.tiny import NUM_SESSION_LAYERS, tiny_model, tiny_model_folder

PROMPTS = ["short", "a somewhat longer prompt, to be cut into chunks", "x", "the third kind of length"]
CONFIG = {"kv_cache_bytes": 2**22, "block_size": 4, "max_num_seqs": 5, "max_context": 128, "max_draft_tokens": 0}


class EagerGraphs:
    """Captures nothing and runs the step again, on the same tensors: what a replay does, without a GPU."""

    def __init__(self):
        self.num_captures = 0

    def capture(self, step):
        self.num_captures += 1
        out = step().clone()

        def replay():
            out.copy_(step())
            return out

        return replay


def engine_of(graphs=None, model=None, num_states=3, **config):
    model = model or tiny_model()
    engine = Engine(model, EngineConfig(**{**CONFIG, **config}), graphs)
    for i in range(num_states):
        # of different ranks and in different layers and modules: a slot's next state reaches less than the one before
        layers = None if i % 2 == 0 else [model.transformer.session_layers[-1]]
        engine.add_state(random_state(model, f"s{i}", seed=i, rank=(8, 1, 3)[i % 3], layers=layers))
    return engine


def requests(sessions, max_new_tokens=9, **sampling):
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True, **sampling)
    return [Request(PROMPTS[i % len(PROMPTS)], params, session=s) for i, s in enumerate(sessions)]


def pinned(engine):
    """With its states resident, so that all requests start in the first step."""
    for i in range(3):
        engine.pin_state(f"s{i}")
    return engine


def tokens(outputs):
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (32, [1, 2, 4, 8, 16, 32])])
def test_a_graph_for_every_power_of_two_and_the_largest_batch(most, sizes):
    assert batch_sizes(most) == sizes


@pytest.mark.parametrize("num_rows", range(1, 6))
@pytest.mark.parametrize("states", ["none", "all", "some"])
def test_every_size_of_batch_gives_the_tokens_of_eager_steps(num_rows, states):
    sessions = {"none": [None] * 5, "all": ["s0", "s1", "s2", "s1", "s0"], "some": [None, "s1", None, "s0", "s2"]}
    asked = requests(sessions[states][:num_rows])
    engine = pinned(engine_of(EagerGraphs()))
    assert tokens(engine.generate(asked)) == tokens(engine_of().generate(asked))
    assert engine.counters.num_graph_replays == 8, "all but the first token, which ends the prefill"
    assert engine.counters.num_eager_steps == 1
    engine.check()


@pytest.mark.parametrize("family", ["qwen2", "mistral", "phi3"])
def test_every_family_can_be_replayed(family):
    asked = requests(["s0", None, "s1"])
    engine = engine_of(EagerGraphs(), tiny_model(family))
    assert tokens(engine.generate(asked)) == tokens(engine_of(model=tiny_model(family)).generate(asked))
    assert engine.counters.num_graph_replays


def test_a_changing_composition_with_states_that_come_and_go_gives_each_its_own_tokens():
    draw = random.Random(11)
    graphs = EagerGraphs()
    engine = engine_of(graphs, num_states=5, num_state_slots=2)
    captured = graphs.num_captures
    assert captured == engine.counters.num_graph_captures == 2 * len(batch_sizes(5))
    asked, outputs, pending = {}, {}, 24
    while pending or engine.num_unfinished:
        if pending and draw.random() < 0.5:
            pending -= 1
            params = SamplingParams(max_new_tokens=draw.randint(1, 12), ignore_eos=True)
            request = Request(draw.choice(PROMPTS), params, session=draw.choice([None, *(f"s{i}" for i in range(5))]))
            asked[engine.add(request)] = request
        for output in engine.step():
            outputs[output.request_id] = output
    engine.check()
    quiet = engine_of(num_states=5)
    for request_id, request in asked.items():
        assert outputs[request_id].token_ids == quiet.generate([request])[0].token_ids
    assert engine.slots.counters.evictions
    assert graphs.num_captures == captured
    counters = engine.counters
    assert counters.num_graph_replays > 20
    assert counters.num_graph_replays + counters.num_eager_steps == counters.num_steps


def test_counters_of_tokens_are_those_of_eager_steps():
    asked = requests(["s0", None, "s2"])
    replayed, eager = pinned(engine_of(EagerGraphs())), pinned(engine_of())
    for engine in (replayed, eager):
        engine.generate(asked)
    same = ("num_steps", "num_tokens", "num_shared_tokens", "num_state_tokens", "num_generated_tokens")
    assert [getattr(replayed.counters, n) for n in same] == [getattr(eager.counters, n) for n in same]
    base = engine_of(EagerGraphs())
    base.generate(requests([None] * 3))
    assert base.counters.num_adapter_calls == 0


def test_drafted_rows_run_eagerly_and_plain_ones_between_are_replayed():
    readout = engine_of().generate(requests(["s0"]))[0].token_ids
    state = random_state(tiny_model(), "s0", seed=0, rank=8)
    drafted = replace(state, meta=replace(state.meta, readout="recorded", readout_token_ids=tuple(readout[:5])))
    engine = engine_of(EagerGraphs(), max_draft_tokens=3)
    engine.add_state(drafted)
    asked = requests(["s0", None])
    assert tokens(engine.generate(asked)) == tokens(engine_of().generate(asked))
    assert engine.counters.num_accepted_tokens
    assert engine.counters.num_graph_replays
    assert engine.counters.num_eager_steps > 2


def test_a_token_that_is_known_below_the_cut_runs_eagerly():
    engine = engine_of(EagerGraphs(), block_size=1)
    ask = Request(PROMPTS[1], SamplingParams(max_new_tokens=1, ignore_eos=True))
    first = engine.generate([ask])
    num_shared_tokens = engine.counters.num_shared_tokens
    assert tokens(engine.generate([ask])) == tokens(first)
    assert engine.counters.num_eager_steps == 2
    assert engine.counters.num_graph_replays == 0
    assert engine.counters.num_shared_tokens == num_shared_tokens


def test_what_replayed_steps_stored_below_the_cut_is_right_for_another_state():
    engine = engine_of(EagerGraphs())
    start = list(range(3, 10))
    said = engine.generate([Request(start, SamplingParams(max_new_tokens=17, ignore_eos=True))])[0]
    ask = Request(start + said.token_ids, SamplingParams(max_new_tokens=5, ignore_eos=True), session="s0")
    output = engine.generate([ask])[0]
    assert output.usage.cached_shared_tokens > len(start)
    assert output.token_ids == engine_of().generate([ask])[0].token_ids
    engine.check()


def test_rows_in_use_never_reach_the_reserved_block_and_padding_reaches_nothing_else():
    model = tiny_model("qwen2")  # its biases keep token 0, whose embedding is zero, from being zero everywhere
    engine = engine_of(EagerGraphs(), model, num_state_slots=1)
    cache = engine._runner._cache
    usable = engine.memory.pools["shared"].num_blocks
    assert len(cache.k[0]) == usable + 1
    memories = [*cache.k, *cache.v, cache.hidden]
    spare = [memory[-1].clone() for memory in memories]
    engine.generate(requests(["s0"]))  # the state is resident from here on
    engine.memory.forget_prefixes()
    for memory in memories:
        memory[:-1].fill_(float("nan"))
    outputs = engine.generate(requests(["s0", None, "s0"]))  # three rows run as four
    assert tokens(outputs) == tokens(engine_of(model=model).generate(requests(["s0", None, "s0"])))
    written = {group: set(range(usable)) - set(pool._free) for group, pool in engine.memory.pools.items()}
    for memory, before in zip(memories, spare, strict=True):
        torch.testing.assert_close(memory[-1], before)  # token 0 at position 0, again and again
    num_shared = engine.model.transformer.num_shared_layers
    for layer, memory in enumerate(cache.k):
        touched = set((~memory[:-1].isnan()).flatten(1).any(1).nonzero().flatten().tolist())
        assert touched >= written["shared" if layer < num_shared else "session"]
        assert len(touched) < 40, "the blocks of three short rows, not all"


def test_sampled_rows_draw_as_in_eager_steps():
    asked = requests([None, "s0", None], temperature=1.0, seed=5)
    assert tokens(engine_of(EagerGraphs()).generate(asked)) == tokens(engine_of().generate(asked))


def test_preemption_changes_no_token():
    asked = requests(["s0", None, "s1", None], max_new_tokens=30)
    model = tiny_model()
    per_token = 2 * model.config.num_layers * model.config.num_kv_heads * model.config.head_dim * 4
    num_bytes = 25 * 4 * (per_token + model.config.hidden_size * 4)
    tight = engine_of(EagerGraphs(), kv_cache_bytes=num_bytes)
    assert tokens(tight.generate(asked)) == tokens(engine_of().generate(asked))
    assert tight.counters.num_preemptions
    tight.check()


def test_an_engine_says_why_it_runs_eagerly():
    engine = engine_of()
    assert engine.why_no_graphs == "made for cuda; the model is on cpu"
    engine.generate(requests([None]))
    assert engine.counters.num_graph_captures == engine.counters.num_graph_replays == 0
    assert engine.counters.num_eager_steps == engine.counters.num_steps
    assert why_no_graphs(torch.device("cuda"), wanted=False) == "cuda_graphs is False"
    assert engine_of(EagerGraphs()).why_no_graphs == ""


@pytest.fixture(scope="module")
def on_gpu():
    return load_model(str(tiny_model_folder()), num_session_layers=NUM_SESSION_LAYERS, device="cuda")


@pytest.mark.gpu
def test_on_a_gpu_graphs_are_captured_at_start_and_nothing_is_captured_or_compiled_later(on_gpu):
    engine = engine_of(model=on_gpu, num_states=0, max_num_seqs=8)
    assert engine.why_no_graphs == ""
    captured, compiled = engine.counters.num_graph_captures, num_compiled_kernels()
    assert compiled
    assert captured == 2 * len(batch_sizes(8))
    for rank in (1, 2, 3, 16, 33, 64):
        engine.add_state(random_state(on_gpu, f"r{rank}", seed=rank, rank=rank))
    ranks = [None, "r1", "r2", "r3", "r16", "r33", "r64", None]
    for num_rows in range(1, 9):
        for length in (1, 2, 15, 16, 17, 31):
            params = SamplingParams(max_new_tokens=3, ignore_eos=True)
            engine.generate([Request(list(range(3, 3 + length)), params, session=s) for s in ranks[:num_rows]])
    assert engine.counters.num_graph_captures == captured
    assert engine.counters.num_graph_replays
    assert num_compiled_kernels() == compiled
    assert engine.counters.num_compiled_in_service == 0


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", range(1, 6))
def test_on_a_gpu_replayed_steps_give_the_tokens_of_eager_ones(on_gpu, num_rows):
    asked = requests([None, "s1", "s0", None, "s2"][:num_rows])
    replayed, eager = engine_of(model=on_gpu), engine_of(model=on_gpu, cuda_graphs=False)
    assert tokens(replayed.generate(asked)) == tokens(eager.generate(asked))
    assert replayed.counters.num_graph_replays
    assert eager.why_no_graphs == "cuda_graphs is False"
