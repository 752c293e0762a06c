"""Root mean square norms, with and without a residual added first: a program a row, sums in one order."""

import torch
import triton
import triton.language as tl

MAX_STEP = 4096  # features that a program holds at a time


@triton.jit
def norm_kernel(
    x, residual, weight, y, total,
    x_stride, residual_stride, size, eps,
    STEP: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """y[t] = weight * s / sqrt(mean(s^2) + eps) with s = x[t], or the rounded sum x[t] + residual[t] kept in total."""
    t = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((STEP,), tl.float32)
    for start in range(0, size, STEP):
        i = start + tl.arange(0, STEP)
        value = tl.load(x + t * x_stride + i, mask=i < size, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(residual + t * residual_stride + i, mask=i < size, other=0.0).to(tl.float32)
            rounded = value.to(total.dtype.element_ty)
            tl.store(total + t * size + i, rounded, mask=i < size)
            value = rounded.to(tl.float32)
        squares += value * value
    factor = 1.0 / tl.sqrt(tl.sum(squares, 0) / size + eps)
    for start in range(0, size, STEP):
        i = start + tl.arange(0, STEP)
        value = tl.load(x + t * x_stride + i, mask=i < size, other=0.0).to(tl.float32)
        if ADD:  # again, not read back: other threads of the program may have written it
            value += tl.load(residual + t * residual_stride + i, mask=i < size, other=0.0).to(tl.float32)
            value = value.to(total.dtype.element_ty).to(tl.float32)
        scale = tl.load(weight + i, mask=i < size, other=0.0).to(tl.float32)
        tl.store(y + t * size + i, (value * factor * scale).to(y.dtype.element_ty), mask=i < size)


def _run(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> list[torch.Tensor]:
    num_rows, size = x.shape
    outputs = [torch.empty(num_rows, size, dtype=x.dtype, device=x.device) for _ in range(1 if residual is None else 2)]
    if 0 in x.shape:
        return outputs
    other = x if residual is None else residual
    with torch.cuda.device_of(x):
        norm_kernel[(num_rows,)](
            x, other, weight, outputs[0], outputs[-1],
            x.stride(0), other.stride(0), size, eps,
            STEP=min(MAX_STEP, triton.next_power_of_2(size)), ADD=residual is not None, num_warps=8,
        )  # fmt: skip
    return outputs


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """weight * x / sqrt(mean(x^2) + eps) for each row of x [T, H]."""
    return _run(x, None, weight, eps)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and the sum."""
    y, total = _run(x, residual, weight, eps)
    return y, total
