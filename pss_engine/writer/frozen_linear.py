"""Dense layers that never change: their output, and the gradient of their input."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pss_engine.models.transformer import Linear
from pss_engine.ops.linear import linear
from pss_engine.ops.packed_weight import PackedWeight


@dataclass(frozen=True)
class FrozenLinear:
    """A dense layer and the gradient of its input: ``y = x W^T + b``, ``dx = dy W``.

    Attributes:
        transposed: W [out, in] plain, or W^T packed for the CPU kernels: a copy that lives as long as this.
    """

    forward: Linear
    transposed: Tensor | PackedWeight

    @classmethod
    def of(cls, layer: Linear) -> FrozenLinear:
        if isinstance(layer.weight, Tensor):
            return cls(layer, layer.weight)
        return cls(layer, PackedWeight.pack(layer.unpacked().T))

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def backward(self, dy: Tensor) -> Tensor:
        """dy [T, out]; returns [T, in]."""
        if isinstance(self.transposed, PackedWeight):
            dx: Tensor = linear(dy, self.transposed)
            return dx
        return dy @ self.transposed
