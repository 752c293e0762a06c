"""Dense layers by weight format at the shapes of SmolLM2-135M, beside what this machine can read and multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.environment import MemoryRead, peak_gflops, say
from bench.rows import Measurement
from bench.suites import Skipped
from bench.timing import paired_seconds, quantiles
from pss_engine.ops import PackedWeight, QuantizedWeight, linear, quantize_int8
from pss_engine.ops.linear import quantize_rows
from pss_engine.ops.packed_weight import FLOAT_FORMATS
from pss_engine.ops.quantized import QUANT_FORMATS

SHAPES = ((576, 960), (576, 3072), (1536, 576), (576, 49152))
NUM_ROWS = (1, 2, 4, 8, 16, 64, 512)
FORMATS = ("float32", "bfloat16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k")
PEER = f"torch F.linear {torch.__version__}"
TOLERANCE = 1e-4
# Weights come from memory in a decoding step: the other layers have passed through the cache since.
COLD_BYTES = 96 * 1024 * 1024
# A logit is wanted of the last token of a row only.
MAX_HEAD_ROWS = 64
# Of one timing: with many rows the weights pass by too seldom to matter, and fewer copies do.
MAX_FLOPS = 4e9


@dataclass(frozen=True)
class Case:
    """x [T, K], and copies of a packed weight [N, K] to run it with one after another (the layers of a step)."""

    x: Tensor
    dense: Tensor
    packed: Sequence[PackedWeight]

    @property
    def flops(self) -> int:
        return 2 * len(self.x) * self.dense.numel()

    def ours(self, int8_rows: bool) -> None:
        for weight in self.packed:
            linear(self.x, weight, None, int8_rows, backend="cpp")

    def peer(self) -> None:
        for _ in self.packed:
            F.linear(self.x, self.dense)

    def check(self, int8_rows: bool) -> bool:
        """Equality with the peer over the dequantised weight; timing a wrong kernel would prove nothing."""
        expected = F.linear(quantize_rows(self.x) if int8_rows else self.x, self.dense)
        found = linear(self.x, self.packed[0], None, int8_rows, backend="cpp")
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * max(1.0, expected.abs().max().item()))
        return True


def stored(format: str, out_features: int, in_features: int) -> Tensor | QuantizedWeight:
    """A weight in a format; the codes of those that have no quantiser here are random."""
    generator = torch.Generator().manual_seed(91)
    weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
    if format in FLOAT_FORMATS:
        return weight.to(FLOAT_FORMATS[format])
    kind = QUANT_FORMATS[format]
    if format == "q8_0":
        return quantize_int8(weight)
    codes = torch.randint(0, 2 ** (kind.low_bits + kind.high_bits), weight.shape, generator=generator)
    blocks, groups = (out_features, in_features // kind.block), (out_features, in_features // kind.group)
    ones = torch.ones(groups, dtype=torch.int8)
    return QuantizedWeight(
        kind,
        in_features,
        codes.to(torch.uint8),
        torch.full(blocks, 0.004).half(),
        torch.full(blocks, -0.03).half() if kind.has_min else None,
        ones if kind.has_sub_scales else None,
        ones if kind.has_sub_scales and kind.has_min else None,
    )


def make_case(format: str, num_rows: int, in_features: int, out_features: int) -> Case:
    weight = stored(format, out_features, in_features)
    count = -(-COLD_BYTES // PackedWeight.bytes_of(weight))
    x = torch.randn(num_rows, in_features, generator=torch.Generator().manual_seed(num_rows))
    dense = weight.dequantize() if isinstance(weight, QuantizedWeight) else weight.float()
    return Case(x, dense, [PackedWeight.pack(weight) for _ in range(count)])


def run(quick: bool) -> Iterator[Measurement]:
    if "cpp" not in linear.backends("cpu"):
        raise Skipped(f"the compiled kernel is not there: {linear.why('cpu')['cpp']}")
    memory, peak = MemoryRead("cpu"), peak_gflops()
    for in_features, out_features in SHAPES[-1:] if quick else SHAPES:
        for format in FORMATS:
            if in_features % QUANT_FORMATS[format].block if format in QUANT_FORMATS else False:
                continue
            say(f"bench: {in_features} to {out_features} in {format}")
            case = make_case(format, 1, in_features, out_features)
            for num_rows in NUM_ROWS[::3] if quick else NUM_ROWS:
                if num_rows <= MAX_HEAD_ROWS or out_features != SHAPES[-1][1]:
                    x = torch.randn(num_rows, in_features, generator=torch.Generator().manual_seed(num_rows))
                    count = max(1, int(MAX_FLOPS / (2 * num_rows * case.dense.numel())))
                    yield from _measure(format, Case(x, case.dense, case.packed[:count]), memory, peak)


def _measure(format: str, case: Case, memory: MemoryRead, peak: float) -> Iterator[Measurement]:
    calls: dict[str, Callable[[], object]] = {"cpp": lambda: case.ours(False)}
    checked: dict[str, bool | str] = {"cpp": case.check(False)}
    if case.packed[0].is_quantized:
        calls["cpp, rows in int8"] = lambda: case.ours(True)
        checked["cpp, rows in int8"] = case.check(True)
    if format == "float32":
        calls[PEER], checked[PEER] = case.peer, "the reference itself, its weight in the cache"
    num_rows, in_features = case.x.shape
    shape = f"{in_features}->{len(case.dense)}"
    seconds = paired_seconds({**calls, "memory": memory}, 7)
    limit = memory.gbps(seconds.pop("memory"))
    for backend, samples in seconds.items():
        each = [seconds / len(case.packed) for seconds in samples]
        yield Measurement(
            "linear",
            {"shape": shape, "weights": format, "num_rows": num_rows},
            backend,
            "seconds",
            "s",
            each,
            checked[backend],
            gbps=case.packed[0].num_bytes / quantiles(each)[1] / 1e9,
            gflops=case.flops / quantiles(each)[1] / 1e9,
            limit_gbps=limit,
            limit_gflops=peak,
        )
