"""Dense layers over packed weights, at the shapes of SmolLM2-135M, beside what this machine can read and multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.environment import read_gbps
from bench.rows import Measurement
from bench.suites import Options, Skipped
from bench.timing import paired_seconds, quantiles
from pss_engine.ops import PackedWeight, linear
from pss_engine.ops.extension import load_extension

SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152))
NUM_ROWS = (1, 2, 4, 8, 16, 64, 512)
PEER = f"torch F.linear {torch.__version__}"
TOLERANCE = 1e-4
# Weights come from memory in a decoding step: the other layers have passed through the cache since.
COLD_BYTES = 64 * 1024 * 1024
# A logit is wanted of the last token of a row only.
MAX_HEAD_ROWS = 64
ROUNDS = 1_000_000


@dataclass(frozen=True)
class Case:
    """x [T, K], and several weights [N, K] to run it with one after another (the layers of a step)."""

    x: Tensor
    dense: Sequence[Tensor]
    packed: Sequence[PackedWeight]

    @property
    def weight_bytes(self) -> int:
        return self.dense[0].numel() * self.dense[0].element_size()

    @property
    def flops(self) -> int:
        return 2 * len(self.x) * self.dense[0].numel()

    def ours(self) -> None:
        for weight in self.packed:
            linear(self.x, weight, backend="cpp")

    def peer(self) -> None:
        for weight in self.dense:
            F.linear(self.x, weight)

    def check(self) -> bool:
        """Equality with the peer; timing a wrong kernel would prove nothing."""
        expected, found = F.linear(self.x, self.dense[0]), linear(self.x, self.packed[0], backend="cpp")
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * max(1.0, expected.abs().max().item()))
        return True


def make_case(num_rows: int, in_features: int, out_features: int) -> Case:
    generator = torch.Generator().manual_seed(91)
    count = -(-COLD_BYTES // (4 * in_features * out_features))
    x = torch.randn(num_rows, in_features, generator=generator)
    dense = [torch.randn(out_features, in_features, generator=generator) / in_features**0.5 for _ in range(count)]
    return Case(x, dense, [PackedWeight.pack(weight) for weight in dense])


def peak_gflops() -> float:
    """GFLOP/s of multiply-adds in registers on all threads that torch uses."""
    run, threads = load_extension().run_multiply_adds, torch.get_num_threads()
    seconds = paired_seconds({"peak": lambda: run(ROUNDS, threads)}, 7, warmup=2)["peak"]
    return 2 * int(run(1, threads)) * ROUNDS / quantiles(seconds)[1] / 1e9


def run(options: Options) -> Iterator[Measurement]:
    if "cpp" not in linear.backends("cpu"):
        raise Skipped(f"the compiled kernel is not there: {linear.why('cpu')['cpp']}")
    limits = {"limit_gbps": read_gbps("cpu"), "limit_gflops": peak_gflops()}
    for in_features, out_features in SHAPES[2:3] if options.quick else SHAPES:
        for num_rows in NUM_ROWS[::3] if options.quick else NUM_ROWS:
            if num_rows > MAX_HEAD_ROWS and out_features == SHAPES[-1][1]:
                continue
            case = make_case(num_rows, in_features, out_features)
            checked: dict[str, bool | str] = {"cpp": case.check(), PEER: "the reference itself"}
            calls: dict[str, Callable[[], object]] = {"cpp": case.ours, PEER: case.peer}
            seconds = paired_seconds(calls, 5 if options.quick else 11)
            for backend, samples in seconds.items():
                each = [s / len(case.dense) for s in samples]
                yield Measurement(
                    "linear",
                    {"shape": f"{in_features}->{out_features}", "num_rows": num_rows},
                    backend,
                    "seconds",
                    "s",
                    each,
                    checked[backend],
                    gbps=case.weight_bytes / quantiles(each)[1] / 1e9,
                    gflops=case.flops / quantiles(each)[1] / 1e9,
                    **limits,
                )
