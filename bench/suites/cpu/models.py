"""The model of the CPU measurements in each way that its weights can be held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.environment import say
from bench.suites import MODEL
from pss_engine.models import LoadedModel, load_model
from pss_engine.ops.packed_weight import PackedWeight

WEIGHTS = ("float32", "bfloat16", "int8", "auto")


@dataclass(frozen=True)
class Variant:
    """A model, how its weights are held, and what rows are taken in."""

    model: LoadedModel
    weights: str
    activations: str

    @property
    def params(self) -> dict[str, str]:
        held = "as in the file" if self.weights == "auto" else self.weights
        return {"model": MODEL, "weights": held, "activations": self.activations}


def variants(quick: bool) -> Iterator[Variant]:
    """Each once; the model is loaded when its turn comes. The first is the one that the others are compared with."""
    for weights in WEIGHTS[::3] if quick else WEIGHTS:
        say(f"bench: {MODEL} with weights {weights}")
        model = load_model(MODEL, device="cpu", weights=weights)
        yield Variant(model, weights, "float32")
        if model.transformer.is_quantized:
            yield Variant(model, weights, "int8")


def packed_bytes(model: LoadedModel) -> int:
    """Bytes of the packed weights; one that is used twice counts once."""
    network = model.transformer
    linears = [network.lm_head, *(linear for layer in network.layers for linear in layer.linears.values())]
    pieces = {piece.panels.data_ptr(): piece for linear in linears for piece in _pieces(linear.weight)}
    pieces |= {piece.panels.data_ptr(): piece for piece in _pieces(network.embedding)}
    return sum(piece.num_bytes for piece in pieces.values())


def _pieces(weight: object) -> tuple[PackedWeight, ...]:
    return weight if isinstance(weight, tuple) else ()
