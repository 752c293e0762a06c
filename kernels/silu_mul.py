"""silu(gate) * up over a fused projection."""

import torch
import triton
import triton.language as tl

STEP = 1024  # outputs of one program


@triton.jit
def silu_kernel(gate_up, y, stride, size, STEP: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * STEP + tl.arange(0, STEP)
    inside = i < size
    gate = tl.load(gate_up + t * stride + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + t * stride + size + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + t * size + i, (gate / (1.0 + tl.exp(-gate)) * up).to(y.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 I] to [T, I]."""
    num_rows, width = gate_up.shape
    y = torch.empty(num_rows, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    if y.numel():
        with torch.cuda.device_of(gate_up):
            silu_kernel[(num_rows, triton.cdiv(width // 2, STEP))](
                gate_up, y, gate_up.stride(0), width // 2, STEP=STEP, num_warps=4
            )
    return y
