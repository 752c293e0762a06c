"""The names of LoRA tensors in the wild, and why a tensor cannot be part of a state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pss_engine.errors import StateFormatError
from pss_engine.state.shape import MODULE_PARENTS, TargetKey, module_key
from pss_engine.state.tensor_file import TensorEntry

_NAME = re.compile(
    r"(?:base_model\.model\.)*"
    r"(?P<prefix>(?:(?:model\.)?language_model\.)?(?:model\.)?)"
    r"layers\.(?P<layer>[0-9]{1,4})\.(?P<parent>\w+)\.(?P<module>\w+)"
    r"\.lora_(?P<side>[AB])(?:\.(?!weight)\w+)?\.weight"
)

_FLOATS = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class PairEntry:
    """The two tensors of one adapted module: their names in the file and what the header says of them."""

    a_name: str
    b_name: str
    a: TensorEntry
    b: TensorEntry


def tensor_name(layer: int, module: str, side: str) -> str:
    """PEFT's name of a factor; ``side`` is ``"A"`` or ``"B"``."""
    return f"base_model.model.{module_key(layer, module)}.lora_{side}.weight"


def parse_name(name: str, where: str) -> tuple[TargetKey, str]:
    """(layer, module) and side of a factor from a name that begins as :func:`tensor_name` makes it."""
    match = _NAME.match(name)
    if match is None or MODULE_PARENTS.get(match["module"]) != match["parent"]:
        raise StateFormatError(f"{where}: tensor {name:.120}: {_reason(name)}")
    return (int(match["layer"]), match["module"]), match["side"]


def pair_tensors(entries: Mapping[str, TensorEntry], where: str) -> tuple[dict[TargetKey, PairEntry], str]:
    """Group the tensors of an adapter into A/B pairs.

    Four spellings are read: PEFT's, one with ``base_model.model.`` doubled, bare ``model.layers...``, and one with a
    ``language_model.`` infix; each also with the adapter's name, as in ``.lora_A.default.weight``.

    Returns:
        (layer, module) -> pair, and what stands before ``layers.`` in PEFT's name of a module, usually ``"model."``.

    Raises:
        StateFormatError: no tensor; or one that is unknown, unsupported, repeated, unpaired, of a wrong dtype or rank.
    """
    sides: dict[str, dict[TargetKey, str]] = {"A": {}, "B": {}}
    prefixes: dict[str, str] = {}
    for name, entry in entries.items():
        match = _NAME.fullmatch(name)
        if match is None or MODULE_PARENTS.get(match["module"]) != match["parent"]:
            raise StateFormatError(f"{where}: tensor {name} ({_describe(entry)}): {_reason(name)}")
        key = (int(match["layer"]), match["module"])
        if key in sides[match["side"]]:
            raise StateFormatError(f"{where}: tensors {sides[match['side']][key]} and {name} are the same factor")
        if entry.dtype not in _FLOATS:
            raise StateFormatError(f"{where}: tensor {name} is {entry.dtype}; choices: {', '.join(_FLOATS)}")
        if len(entry.shape) != 2:
            raise StateFormatError(f"{where}: tensor {name} has {len(entry.shape)} dimensions, a LoRA factor has 2")
        sides[match["side"]][key] = name
        prefixes.setdefault(match["prefix"], name)
    if len(prefixes) > 1:
        raise StateFormatError(
            f"{where}: tensors {' and '.join(list(prefixes.values())[:2])} are named for different models"
        )
    if not prefixes:
        raise StateFormatError(f"{where}: no LoRA tensor; a state that changes nothing is refused")
    return _pairs(sides["A"], sides["B"], entries, where), next(iter(prefixes)) or "model."


def _pairs(
    a_names: Mapping[TargetKey, str], b_names: Mapping[TargetKey, str], entries: Mapping[str, TensorEntry], where: str
) -> dict[TargetKey, PairEntry]:
    pairs = {}
    for key in sorted(set(a_names) | set(b_names)):
        if key not in a_names or key not in b_names:
            present, missing = (a_names, "lora_B") if key in a_names else (b_names, "lora_A")
            raise StateFormatError(f"{where}: tensor {present[key]} has no {missing} beside it")
        pair = PairEntry(a_names[key], b_names[key], entries[a_names[key]], entries[b_names[key]])
        if pair.a.shape[0] != pair.b.shape[1] or pair.a.shape[0] < 1:
            raise StateFormatError(
                f"{where}: rank {pair.a.shape[0]} in {pair.a_name} and {pair.b.shape[1]} in {pair.b_name}: "
                "must be equal and at least 1"
            )
        pairs[key] = pair
    return pairs


def _describe(entry: TensorEntry) -> str:
    return f"{entry.dtype} {list(entry.shape)}, {entry.num_bytes} bytes"


def _reason(name: str) -> str:
    if name.endswith(".bias"):
        return "bias tensors are not supported"
    if "lora_magnitude_vector" in name:
        return "DoRA is not supported"
    if "base_layer" in name:
        return "a copy of base weights; save the adapter without them"
    if re.search(r"lm_head|embed_tokens|unembed_tokens|embed_out|lora_embedding", name):
        return "adapters and copies of the embedding or the output head are not supported"
    if "modules_to_save" in name:
        return "fully trained modules (modules_to_save) are not supported"
    return f"unknown tensor; a state has lora_A and lora_B of {', '.join(MODULE_PARENTS)} in decoder layers"
