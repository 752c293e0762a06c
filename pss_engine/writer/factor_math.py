"""What the factors of a batch add to a linear, and their gradients: ``y += scaling (x A^T) B^T``, each row its own."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.ops.products import Product, Products, products
from pss_engine.writer.factors import FactorStack, Key, LinearFactors
from pss_engine.writer.row_sets import Group, RowSet


class FactorMath:
    """The stack's factors for the rows of one update.

    On the CPU in float32 each session's products are computed from its own rows alone, so that their bits do not depend
    on the batch. Elsewhere the sessions are padded to the longest and multiplied as one batch; in a model of narrow
    floats the products are in its dtype, factors and gradients in float32.
    """

    def __init__(self, stack: FactorStack, dtype: torch.dtype) -> None:
        self._stack, self._scaling = stack, stack.scaling
        self._of = stack.of if dtype == torch.float32 else stack.views(stack.values.to(dtype))
        self._apart = stack.values.device.type == "cpu" and dtype == torch.float32

    def add(self, key: Key, x: Tensor, y: Tensor, rows: RowSet) -> Tensor:
        """Add to y [T, H_out] in place; returns u = scaling x A^T [T, M R], which :meth:`backward` needs."""
        factors = self._of[key]
        shrunk = x.new_empty(len(x), factors.a.shape[1])
        if self._apart:
            self._add_apart(factors, x, y, shrunk, rows)
            return shrunk
        for group in rows.groups:
            u = torch.bmm(group.take(x), _pick(factors.a, group).transpose(1, 2)).mul_(self._scaling)
            group.put(shrunk, u)
            for b, outputs, ranks in zip(factors.b, factors.outputs, factors.ranks, strict=True):
                group.add(y[:, outputs], torch.bmm(u[..., ranks], _pick(b, group).transpose(1, 2)))
        return shrunk

    def backward(self, key: Key, dy: Tensor, x: Tensor, shrunk: Tensor, dx: Tensor | None, rows: RowSet) -> None:
        """Write the gradients of A and B; add that of x [T, H_in] to dx, where it is wanted."""
        factors, grads = self._of[key], self._stack.grads_of[key]
        if self._apart:
            self._backward_apart(factors, grads, dy, x, shrunk, dx, rows)
            return
        for group in rows.groups:
            u, x_rows, dy_rows = group.take(shrunk), group.take(x), group.take(dy)
            du = torch.empty_like(u)
            for m, (outputs, ranks) in enumerate(zip(factors.outputs, factors.ranks, strict=True)):
                part = dy_rows[..., outputs]
                du[..., ranks] = torch.bmm(part, _pick(factors.b[m], group))
                grads.b[m][group.slots] = torch.bmm(part.transpose(1, 2), u[..., ranks]).float()
            du.mul_(self._scaling)
            grads.a[group.slots] = torch.bmm(du.transpose(1, 2), x_rows).float()
            if dx is not None:
                group.add(dx, torch.bmm(du, _pick(factors.a, group)))

    def _add_apart(self, factors: LinearFactors, x: Tensor, y: Tensor, shrunk: Tensor, rows: RowSet) -> None:
        shrink, expand = Products(), Products()
        for slot, span in rows.spans:
            u, y_rows = shrunk[span], y[span]
            shrink.append(Product(u, x[span], factors.a[slot].T, self._scaling))
            for b, outputs, ranks in zip(factors.b, factors.outputs, factors.ranks, strict=True):
                expand.append(Product(y_rows[:, outputs], u[:, ranks], b[slot].T, add=True))
        products(shrink)
        products(expand)

    def _backward_apart(
        self,
        factors: LinearFactors,
        grads: LinearFactors,
        dy: Tensor,
        x: Tensor,
        shrunk: Tensor,
        dx: Tensor | None,
        rows: RowSet,
    ) -> None:
        d_shrunk = torch.empty_like(shrunk)
        of_b, of_a = Products(), Products()
        for slot, span in rows.spans:
            u, du, dy_rows = shrunk[span], d_shrunk[span], dy[span]
            for m, (outputs, ranks) in enumerate(zip(factors.outputs, factors.ranks, strict=True)):
                part = dy_rows[:, outputs]
                of_b.append(Product(du[:, ranks], part, factors.b[m][slot], self._scaling))
                of_b.append(Product(grads.b[m][slot], part.T, u[:, ranks]))
            of_a.append(Product(grads.a[slot], du.T, x[span]))
            if dx is not None:
                of_a.append(Product(dx[span], du, factors.a[slot], add=True))
        products(of_b)
        products(of_a)


def _pick(stacked: Tensor, group: Group) -> Tensor:
    return stacked if group.slots == list(range(len(stacked))) else stacked[group.slots]
