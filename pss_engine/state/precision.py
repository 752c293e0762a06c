"""Smaller and finer files than bfloat16: residuals in int8, int4 or float16 (PSS, J.6).

``int8``, ``int4``: codes of the difference to the factors that learning began with, which the seed gives back, and a
bfloat16 scale for each 32 of them. ``fp16_residual``: the bfloat16 factors, and in float16 what rounding took away.
A state in one of these precisions has float32 factors that its file gives back to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pss_engine.errors import StateFormatError
from pss_engine.state.file_source import FileSource
from pss_engine.state.shape import FORWARD_ORDER, TargetKey
from pss_engine.state.tensor_file import TensorFile
from pss_engine.state.tensor_names import parse_name, tensor_name

if TYPE_CHECKING:
    from pss_engine.state.peft_format import Tensors

PACKED_FILE = "factors.safetensors"
GROUP = 32
LEVELS = {"int8": 127, "int4": 7}
PRECISIONS = ("fp16_residual", *LEVELS)


def initial_a(shapes: Mapping[TargetKey, tuple[int, int]], seed: int) -> dict[TargetKey, Tensor]:
    """lora_A that learning begins with: U(-1/sqrt(H_in), 1/sqrt(H_in)) [R, H_in] float32, PEFT's, from one seeded
    generator in the order of layers, then modules; lora_B begins with 0."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for key in sorted(shapes, key=lambda key: (key[0], FORWARD_ORDER.index(key[1]))):
        bound = 1.0 / math.sqrt(shapes[key][1])
        found[key] = torch.empty(shapes[key]).uniform_(-bound, bound, generator=generator)
    return found


def pack(tensors: Tensors, precision: str, seed: int) -> dict[str, Tensor]:
    """The factors as they lie in ``PACKED_FILE``, by name."""
    base = initial_a({key: (a.shape[0], a.shape[1]) for key, (a, _) in tensors.items()}, seed)
    packed: dict[str, Tensor] = {}
    for key, pair in tensors.items():
        for side, factor in zip("AB", pair, strict=True):
            name, factor = tensor_name(*key, side), factor.float()
            if precision == "fp16_residual":
                packed[f"{name}.base"] = factor.bfloat16()
                packed[f"{name}.residual"] = (factor - packed[f"{name}.base"].float()).half()
            else:
                packed |= _codes(name, factor - base[key] if side == "A" else factor, precision)
    return packed


def unpack(
    packed: Mapping[str, Tensor], precision: str, seed: int, shapes: Mapping[TargetKey, tuple[int, int, int]]
) -> Tensors:
    """The factors again, float32. ``shapes``: rank, in and out features of each pair.

    Raises:
        StateFormatError: a tensor that is missing or does not fit.
    """
    base = initial_a({key: (rank, inputs) for key, (rank, inputs, _) in shapes.items()}, seed)
    found: Tensors = {}
    for key, (rank, inputs, outputs) in shapes.items():
        sides = []
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            name = tensor_name(*key, side)
            if precision == "fp16_residual":
                factor = _get(packed, f"{name}.base", shape).float() + _get(packed, f"{name}.residual", shape).float()
            else:
                factor = _decoded(packed, name, shape, precision)
                factor = base[key] + factor if side == "A" else factor
            sides.append(factor)
        found[key] = (sides[0], sides[1])
    return found


def rounded(tensors: Tensors, precision: str, seed: int) -> Tensors:
    """What is left of factors in a precision: what a state written in it has."""
    if precision == "bf16":
        return {key: (a.bfloat16(), b.bfloat16()) for key, (a, b) in tensors.items()}
    shapes = {key: (a.shape[0], a.shape[1], b.shape[0]) for key, (a, b) in tensors.items()}
    return unpack(pack(tensors, precision, seed), precision, seed, shapes)


def read_packed(source: FileSource, precision: str, seed: int, ranks: Mapping[TargetKey, int]) -> Tensors:
    """The factors of a packed file; ``ranks`` says which pairs there must be."""
    where = source.where(PACKED_FILE)
    with TensorFile(where, file=source.open(PACKED_FILE)) as file:
        features = {parse_name(name, where): entry.shape for name, entry in file.entries.items() if _is_main(name)}
        packed = file.load()
    if {key for key, _ in features} != set(ranks) or len(features) != 2 * len(ranks):
        raise StateFormatError(f"{where}: has {len(features)} factors, the configuration declares {2 * len(ranks)}")
    shapes = {}
    for key, rank in ranks.items():
        inputs, outputs = features[key, "A"], features[key, "B"]
        if len(inputs) != 2 or len(outputs) != 2:
            raise StateFormatError(f"{where}: factors of layer {key[0]} {key[1]} have {len(inputs)} dimensions, not 2")
        # int4 holds two codes a byte: the width is known from the scales' side for A, and is the rank for B
        width = inputs[1] * 2 - _is_odd(packed, tensor_name(*key, "A")) if precision == "int4" else inputs[1]
        shapes[key] = (rank, width, outputs[0])
    return unpack(packed, precision, seed, shapes)


def _codes(name: str, values: Tensor, precision: str) -> dict[str, Tensor]:
    levels = LEVELS[precision]
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % GROUP)).view(rows, -1, GROUP)
    scales = (padded.abs().amax(-1) / levels).bfloat16()
    steps = scales.float()[..., None]
    codes = torch.where(steps > 0, padded / steps, 0.0).round().clamp(-levels, levels).to(torch.int8)
    codes = codes.view(rows, -1)[:, :columns]
    if precision == "int4":
        codes = torch.nn.functional.pad(codes, (0, columns % 2)) + 8
        codes = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    found = {f"{name}.codes": codes.contiguous(), f"{name}.scales": scales}
    if precision == "int4" and columns % 2:
        found[f"{name}.odd"] = torch.ones(1, dtype=torch.uint8)
    return found


def _decoded(packed: Mapping[str, Tensor], name: str, shape: tuple[int, int], precision: str) -> Tensor:
    rows, columns = shape
    if precision == "int4":
        two = _get(packed, f"{name}.codes", (rows, -(-columns // 2)))
        codes = torch.stack([two & 15, two >> 4], -1).view(rows, -1)[:, :columns].float() - 8
    else:
        codes = _get(packed, f"{name}.codes", shape).float()
    scales = _get(packed, f"{name}.scales", (rows, -(-columns // GROUP))).float()
    return codes * scales.repeat_interleave(GROUP, dim=1)[:, :columns]


def _get(packed: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> Tensor:
    found = packed.get(name)
    if found is None or tuple(found.shape) != shape:
        seen = "is missing" if found is None else f"is {list(found.shape)}"
        raise StateFormatError(f"{PACKED_FILE}: {name} {seen}, {list(shape)} is needed")
    return found


def _is_main(name: str) -> bool:
    return name.endswith((".codes", ".base"))


def _is_odd(packed: Mapping[str, Tensor], name: str) -> int:
    return int(f"{name}.odd" in packed)
