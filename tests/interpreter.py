"""Makes Triton's interpreter trustworthy: right bfloat16, autotuned kernels, and an error for addresses out of bounds.

The stock interpreter keeps bfloat16 as raw uint16 and computes on the bits, truncates where GPUs round to the nearest,
lets a row of a product depend on the rows beside it, cannot run ``@triton.autotune``, and reads whatever lies behind a
wrong address.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


@cache
def install() -> None:
    """Patches the interpreter of this process, once. TRITON_INTERPRET=1 must have been set before triton's import."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("TRITON_INTERPRET must be 1 before triton is imported")
    _round_bfloat16()
    _keep_rows_of_products_apart()
    _compute_bfloat16_in_float32()
    _refuse_bfloat16_reductions()
    _autotune_takes_the_first_config()
    _fuse_multiply_adds()
    _check_addresses()


def _is_bfloat16(handle: Any) -> bool:
    import triton.language as tl

    return getattr(handle, "dtype", None) is not None and handle.dtype.scalar == tl.bfloat16


def _widened(handle: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import interpreter_builder

    return interpreter_builder.cast_impl(handle, tl.float32) if _is_bfloat16(handle) else handle


def _narrowed(values: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    return interpreter_builder.cast_impl(TensorHandle(np.asarray(values, np.float32), tl.float32), tl.bfloat16)


def _round_bfloat16() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    stock = InterpreterBuilder.cast_impl

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return stock(self, source, target)
        bits = np.ascontiguousarray(source.data, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return TensorHandle(np.where(np.isnan(source.data), np.uint16(0x7FC0), rounded), tl.bfloat16)

    InterpreterBuilder.cast_impl = cast_impl


def _keep_rows_of_products_apart() -> None:
    """BLAS, which the stock interpreter calls, may add up a row in an order that its place among the rows decides."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    stock = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if min(a.dtype.primitive_bitwidth, b.dtype.primitive_bitwidth) < 16:
            return stock(self, a, b, d, *rest)
        products = np.einsum("...mk,...kn->...mn", a.data, b.data, dtype=d.data.dtype)
        return TensorHandle(products + d.data, d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


def _compute_bfloat16_in_float32() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    comparisons = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}
    stock_dot, stock_binary, stock_unary = (
        InterpreterBuilder.create_dot,
        InterpreterBuilder.binary_op,
        InterpreterBuilder.unary_op,
    )

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return stock_dot(self, _widened(a), _widened(b), *rest)

    def binary_op(self: Any, left: Any, right: Any, op: Callable[..., Any]) -> Any:
        if not (_is_bfloat16(left) or _is_bfloat16(right)):
            return stock_binary(self, left, right, op)
        values = op(_widened(left).data, _widened(right).data)
        return TensorHandle(values, tl.int1) if op in comparisons else _narrowed(values)

    def unary_op(self: Any, value: Any, op: Callable[..., Any]) -> Any:
        if not _is_bfloat16(value):
            return stock_unary(self, value, op)
        return _narrowed(op(_widened(value).data))

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.unary_op = unary_op
    if not hasattr(InterpreterBuilder, "get_bf16"):
        InterpreterBuilder.get_bf16 = lambda self, value: _narrowed([value])


def _refuse_bfloat16_reductions() -> None:
    from triton.runtime.interpreter import ReduceOps, ScanOps

    def refusing(stock: Callable[..., Any]) -> Callable[..., Any]:
        def apply_impl(self: Any, operand: Any) -> Any:
            for tensor in operand if isinstance(operand, tuple) else (operand,):
                if _is_bfloat16(tensor.handle):
                    raise TypeError("bfloat16 reduction under the interpreter: cast to float32 first")
            return stock(self, operand)

        return apply_impl

    for operation in (ReduceOps, ScanOps):
        operation.apply_impl = refusing(operation.apply_impl)


def _autotune_takes_the_first_config() -> None:
    from triton.runtime.autotuner import Autotuner

    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [float(self.configs.index(config))] * 3

    Autotuner._bench = _bench


def _fuse_multiply_adds() -> None:
    """One rounding, as GPUs do: the exact product and sum in float64, rounded to odd before float32."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    stock = InterpreterBuilder.create_fma

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if x.dtype.scalar != tl.float32:
            return stock(self, x, y, z)
        with np.errstate(invalid="ignore"):
            product, addend = np.float64(x.data) * np.float64(y.data), np.float64(z.data)
            total = np.asarray(product + addend)
            virtual = total - product
            error = (product - (total - virtual)) + (addend - virtual)
            towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
            is_even = (total.view(np.int64) & 1) == 0
            odd = np.where(np.isfinite(error) & (error != 0) & is_even, towards, total)
        return TensorHandle(odd.astype(np.float32), x.dtype.scalar)

    InterpreterBuilder.create_fma = create_fma


def _check_addresses() -> None:
    """Masked loads and stores outside the tensors of the launch raise IndexError."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    ranges: list[tuple[int, int]] = []
    stock_init = GridExecutor._init_args_hst
    stock_load, stock_store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def bounds(tensor: Any) -> tuple[int, int]:
        if tensor.is_contiguous():
            return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        host = stock_init(self, args, kwargs)
        ranges[:] = [bounds(value) for value in [*host[0], *host[1].values()] if hasattr(value, "data_ptr")]
        return host

    def check(pointers: Any, mask: Any, access: str) -> None:
        active = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(active.shape, bool)
        for start, end in ranges:
            inside |= (active >= start) & (active + size <= end)
        if not inside.all():
            raise IndexError(f"{access}: {int((~inside).sum())} lanes out of bounds")

    def create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask, "load")
        return stock_load(self, pointers, mask, *rest)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask, "store")
        return stock_store(self, pointers, value, mask, *rest)

    GridExecutor._init_args_hst = init_args
    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
