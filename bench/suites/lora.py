"""``lora_bgmv`` on every backend, at the shapes of SmolLM2-135M: 576->576, 576->1536, 1536->576."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product

import torch
from torch import Tensor

from bench.environment import MemoryRead
from bench.rows import Measurement
from bench.suites import Options
from bench.timing import paired_seconds, quantiles
from pss_engine.ops.lora import lora_bgmv

SHAPES = ((576, 576), (576, 1536), (1536, 576))
NUM_ROWS = (1, 8, 32)
# States are stored in bfloat16; an engine of a float32 model widens them unless it is told not to.
FACTORS = ((8, torch.bfloat16), (32, torch.bfloat16), (32, torch.float32))
POPULARITIES = ("distinct", "zipf", "identical")
REFERENCE = "torch"
TOLERANCE = 1e-4
# Factors come from memory in a decoding step: the other layers and modules have passed through the cache since.
COLD_BYTES = 64 * 1024 * 1024
MAX_CALLS = 64


@dataclass(frozen=True)
class Case:
    """One batch, and several sets of factors to run it with one after another (the layers of a step).

    x [T, H_in] float32, sets of (A [S, R, H_in], B [S, H_out, R]), slot_ids [T] int32.
    """

    x: Tensor
    sets: Sequence[tuple[Tensor, Tensor]]
    scaling: Tensor
    ranks: Tensor
    slot_ids: Tensor

    @property
    def call_bytes(self) -> int:
        """Bytes that one call must move: the factors of the slots in use, x once, y read and written."""
        a, b = self.sets[0]
        factors = (a[0].numel() + b[0].numel()) * a.element_size() * int(self.slot_ids.unique().numel())
        num_rows, out_features = self.x.size(0), b.size(1)
        return factors + self.x.numel() * 4 + 2 * num_rows * out_features * 4

    @property
    def num_calls(self) -> int:
        """Calls of one sample."""
        return min(len(self.sets), MAX_CALLS)

    def output(self) -> Tensor:
        out_features = self.sets[0][1].size(1)
        return torch.zeros(self.x.size(0), out_features, device=self.x.device)

    def call(self, backend: str, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        lora_bgmv(y, self.x, a, b, self.scaling, self.ranks, self.slot_ids, backend=backend)
        return y


def make_case(
    popularity: str, num_rows: int, rank: int, shape: tuple[int, int], dtype: torch.dtype, device: str
) -> Case:
    """``distinct``: a state for each row; ``identical``: one for all; ``zipf``: state i with weight 1/i."""
    generator = torch.Generator().manual_seed(91)
    in_features, out_features = shape
    num_slots = 1 if popularity == "identical" else num_rows
    if popularity == "zipf":
        weights = 1 / torch.arange(1.0, num_slots + 1)
        slot_ids = torch.multinomial(weights, num_rows, replacement=True, generator=generator)
    else:
        slot_ids = torch.arange(num_rows) % num_slots

    def randn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    used_bytes = int(slot_ids.unique().numel()) * rank * (in_features + out_features) * dtype.itemsize
    sets = [
        (
            (randn(num_slots, rank, in_features) / in_features**0.5).to(device, dtype),
            (randn(num_slots, out_features, rank) / rank**0.5).to(device, dtype),
        )
        for _ in range(-(-COLD_BYTES // used_bytes))
    ]
    scaling, ranks = torch.full((num_slots,), 2.0), torch.full((num_slots,), rank, dtype=torch.int32)
    x = randn(num_rows, in_features)
    return Case(x.to(device), sets, scaling.to(device), ranks.to(device), slot_ids.int().to(device))


def check(case: Case, backend: str) -> bool | str:
    """Equality with the reference; timing a wrong kernel would prove nothing."""
    if backend == REFERENCE:
        return "the reference itself"
    expected, found = (case.call(name, case.output(), *case.sets[0]) for name in (REFERENCE, backend))
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * max(1.0, expected.abs().max().item()))
    return True


def sample(case: Case, backend: str, sets: Iterator[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """``num_calls`` calls with the next sets: what is timed, and divided by their number."""
    y = case.output()

    def run() -> None:
        for a, b in islice(sets, case.num_calls):
            case.call(backend, y, a, b)

    return run


def run(options: Options) -> Iterator[Measurement]:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        memory = MemoryRead(device)
        for case, params in _cases(options, device):
            backends = lora_bgmv.backends(device)
            checked = {backend: check(case, backend) for backend in backends}
            # One cycle for all backends, so that none finds in the cache what another has just read.
            sets = cycle(case.sets)
            seconds = paired_seconds(
                {**{backend: sample(case, backend, sets) for backend in backends}, "memory": memory},
                5 if options.quick else 15,
                synchronize=torch.cuda.synchronize if device == "cuda" else lambda: None,
            )
            limit_gbps = memory.gbps(seconds["memory"])
            for backend in backends:
                samples = [s / case.num_calls for s in seconds[backend]]
                yield Measurement(
                    "lora_bgmv",
                    params,
                    backend,
                    "seconds",
                    "s",
                    samples,
                    checked[backend],
                    gbps=case.call_bytes / quantiles(samples)[1] / 1e9,
                    limit_gbps=limit_gbps,
                    device=device,
                )


def _cases(options: Options, device: str) -> Iterator[tuple[Case, dict[str, object]]]:
    batches = [(n, p) for n in NUM_ROWS for p in POPULARITIES if n > 1 or p == "distinct"]
    shapes, factors = (SHAPES[1:2], FACTORS[-1:]) if options.quick else (SHAPES, FACTORS)
    for (shape, (rank, dtype)), (num_rows, popularity) in product(product(shapes, factors), batches):
        case = make_case(popularity, num_rows, rank, shape, dtype, device)
        yield (
            case,
            {
                "shape": f"{shape[0]}->{shape[1]}",
                "rank": rank,
                "factors": str(dtype).removeprefix("torch."),
                "num_rows": num_rows,
                "popularity": popularity,
            },
        )
