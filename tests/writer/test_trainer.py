"""The writer learns what a plain PEFT loop learns, above the cut only, and the same each time."""

from __future__ import annotations

import sys

import peft
import pytest
import torch
from torch.nn import functional as F

from pss_engine.errors import CapacityError, ConfigError
from pss_engine.writer import History, SessionTargets, Writer, WriterConfig, readout_messages
from pss_engine.writer.factors import FactorStack
from pss_engine.writer.learner import Learner
from tests.tiny import FAMILIES, tiny_hf_model, tiny_model

HISTORY = History.of(
    [
        {"role": "user", "content": "We archived plan A. Plan B with the blue pump is current."},
        {"role": "assistant", "content": "Noted: plan B, blue pump, valve 7."},
    ]
)
TARGETS = SessionTargets("plan B blue pump", "plan A red pump")
CONFIG = WriterConfig(rank=4, alpha=8.0, chunk_tokens=16, min_lm_steps=3, readout_steps=6, readout_learning_rate=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_factors_are_those_of_peft_with_adamw(family):
    model = tiny_model(family)
    losses: list[float] = []
    state = Writer(model, CONFIG).write("s", HISTORY, TARGETS, lambda phase, done, total, loss: losses.append(loss))
    expected_losses, expected = peft_loop(model, family)
    assert losses == pytest.approx(expected_losses, abs=1e-4)
    for (layer, module), factors in state.factors.items():
        a, b = expected[layer, module]
        torch.testing.assert_close(factors.a.float(), a, atol=1e-3, rtol=1e-2)  # a state is stored in bfloat16
        torch.testing.assert_close(factors.b.float(), b, atol=1e-3, rtol=1e-2)


def peft_loop(model, family):
    """The paper's loop written plainly: the whole network, one segment at a time, PEFT and torch's AdamW."""
    first, config = model.transformer.num_shared_layers, model.config
    lora = peft.LoraConfig(
        r=CONFIG.rank,
        lora_alpha=CONFIG.alpha,
        target_modules=list(config.lora_targets),
        layers_to_transform=list(range(first, config.num_layers)),
    )
    theirs = peft.get_peft_model(tiny_hf_model(family), lora).train()
    stack = FactorStack(config, model.transformer.session_layers, CONFIG.rank, 2.0, 1, model.device)
    stack.reset(0, CONFIG.seed)
    init = stack.pairs(0)
    named = {}
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            layer, module = int(name.split("layers.")[1].split(".")[0]), name.split(".lora_")[0].split(".")[-1]
            side = 0 if "lora_A" in name else 1
            parameter.data.copy_(init[layer, module][side])
            named.setdefault((layer, module), [None, None])[side] = parameter
    trainable = [p for pair in named.values() for p in pair]

    def nll(given, learned):
        ids = torch.tensor([[*given, *learned]])
        return F.cross_entropy(theirs(ids).logits[0, len(given) - 1 : -1], torch.tensor(learned))

    def update(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()

    losses = []
    tokenizer = model.tokenizer
    chunks = HISTORY.chunks(tokenizer, CONFIG.chunk_tokens)
    optimizer = torch.optim.AdamW(trainable, lr=CONFIG.lm_learning_rate, weight_decay=0.0)
    for step in range(max(CONFIG.min_lm_steps, len(chunks))):
        chunk = chunks[step % len(chunks)]
        loss = nll(chunk[:1], chunk[1:])
        losses.append(loss.item())
        update(optimizer, loss)
    optimizer = torch.optim.AdamW(trainable, lr=CONFIG.readout_learning_rate, weight_decay=0.0)
    prompt = tokenizer.chat(readout_messages(CONFIG.instruction))
    for _ in range(CONFIG.readout_steps):
        positive = nll(prompt, [*tokenizer.encode(TARGETS.clue), tokenizer.eos_token_id])
        negative = nll(prompt, [*tokenizer.encode(TARGETS.negative_clue), tokenizer.eos_token_id])
        losses.append(positive.item())
        update(optimizer, positive + F.relu(CONFIG.margin + positive - negative))
    return losses, {key: tuple(p.detach() for p in pair) for key, pair in named.items()}


def test_the_same_seed_writes_the_same_state_and_another_does_not():
    model = tiny_model()
    first, again = (Writer(model, CONFIG).write("s", HISTORY, TARGETS) for _ in range(2))
    other = Writer(model, WriterConfig(**{**CONFIG.to_dict(), "seed": 92})).write("s", HISTORY, TARGETS)
    assert first.digest == again.digest != other.digest


def test_shared_layers_run_once_for_each_distinct_sequence(monkeypatch):
    model = tiny_model()
    calls = []
    shared = type(model.transformer).shared
    monkeypatch.setattr(type(model.transformer), "shared", lambda self, batch: calls.append(1) or shared(self, batch))
    Writer(model, WriterConfig(**{**CONFIG.to_dict(), "min_lm_steps": 40})).write("s", HISTORY, TARGETS)
    assert len(calls) == len(HISTORY.chunks(model.tokenizer, CONFIG.chunk_tokens)) + 1


def test_a_state_says_where_it_comes_from():
    model = tiny_model()
    meta = Writer(model, CONFIG).write("s", HISTORY, TARGETS).meta
    assert (meta.model_fingerprint, meta.tokenizer_fingerprint) == (model.fingerprint, model.tokenizer.fingerprint)
    assert (meta.clue, meta.negative_clue, meta.seed) == (TARGETS.clue, TARGETS.negative_clue, CONFIG.seed)
    assert meta.num_history_tokens == sum(map(len, HISTORY.chunks(model.tokenizer, CONFIG.chunk_tokens)))


def test_a_state_over_its_budget_is_not_returned():
    with pytest.raises(CapacityError, match="state budget"):
        Writer(tiny_model(), WriterConfig(**{**CONFIG.to_dict(), "max_state_bytes": 100})).write("s", HISTORY, TARGETS)


def test_progress_covers_both_phases_to_their_end():
    seen = []
    Writer(tiny_model(), CONFIG).write("s", HISTORY, TARGETS, lambda *step: seen.append(step[:3]))
    assert seen[-1] == ("readout", 6, 6)
    assert [done for phase, done, _ in seen if phase == "history"] == list(range(1, seen[0][2] + 1))


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 0), ("chunk_tokens", 1), ("readout_steps", 0), ("objective", "none")]
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        WriterConfig(**{field: value})


def written_with(monkeypatch, tried):
    """A state of a long readout phase, and the counters, where ``tried`` says how many tokens of z- to look at."""
    if tried is not None:
        monkeypatch.setattr(Learner, "negative_tokens", property(lambda self: tried))
    writer = Writer(tiny_model(), WriterConfig(**{**CONFIG.to_dict(), "readout_steps": 40}))
    state = writer.write("s", HISTORY, TARGETS)
    monkeypatch.undo()
    return state, writer.counters


def test_where_the_hinge_is_zero_the_first_tokens_of_the_negative_show_it_and_nothing_else_changes(monkeypatch):
    everything, all_rows = written_with(monkeypatch, tried=sys.maxsize)
    state, rows = written_with(monkeypatch, tried=None)
    assert state.digest == everything.digest
    assert rows.active_hinges == all_rows.active_hinges < rows.updates
    assert rows.forward_rows < all_rows.forward_rows
    assert rows.backward_rows == all_rows.backward_rows


def test_too_few_tokens_of_the_negative_are_looked_at_again_in_full(monkeypatch):
    everything, _ = written_with(monkeypatch, tried=sys.maxsize)
    state, rows = written_with(monkeypatch, tried=1)
    assert state.digest == everything.digest
    assert rows.active_hinges > 0
