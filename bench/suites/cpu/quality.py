"""What a weight format costs: perplexity of a text, and how often it would choose another token than float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from bench.rows import Measurement
from bench.suites.cpu.models import Variant, variants
from pss_engine.models import DenseAttention, ForwardBatch

TEXT = Path(__file__).resolve().parents[2] / "texts" / "tide_mills.txt"
QUICK_TOKENS = 256


@torch.inference_mode()
def logits(variant: Variant, token_ids: list[int]) -> Tensor:
    """[T, V] of every token of one sequence."""
    model, count = variant.model, len(token_ids)
    network = model.transformer if variant.activations == "float32" else model.transformer.with_int8_rows()
    attention = DenseAttention(model.config, [count])
    batch = ForwardBatch(torch.tensor(token_ids), torch.arange(count), attention, None, torch.arange(count))
    return network.session(batch, network.shared(batch))


def run(quick: bool) -> Iterator[Measurement]:
    reference: Tensor | None = None
    for variant in variants(quick):
        token_ids = variant.model.tokenizer.encode(TEXT.read_text("utf-8"))
        if quick:
            token_ids = token_ids[:QUICK_TOKENS]
        found = logits(variant, token_ids)
        nats = torch.nn.functional.cross_entropy(found[:-1], torch.tensor(token_ids[1:]))
        reference = found if reference is None else reference
        params = {**variant.params, "tokens": len(token_ids)}
        checked, case, count = "a measure of quality, not of speed", "a bundled text", len(token_ids)
        yield Measurement(case, params, "cpp", "cross_entropy", "nats", [float(nats)], checked, count)
        same = float((found.argmax(-1) == reference.argmax(-1)).float().mean())
        yield Measurement(case, params, "cpp", "same_token_as_float32", "share", [same], checked, count)
