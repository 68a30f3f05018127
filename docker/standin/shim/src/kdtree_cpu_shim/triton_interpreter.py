"""Make Triton's CPU interpreter (TRITON_INTERPRET=1) compute bf16 and fp8 as a GPU does.

The interpreter keeps bf16 and fp8 values as bit patterns in unsigned integer arrays. Of the operations on
them it mends only some: tl.dot and elementwise arithmetic work on the bit patterns themselves, a conversion
from or to an integer copies them, and fp32 -> bf16 truncates. `install()` replaces those operations so that
narrow values are widened to float32 (exact), computed there and rounded to nearest even, fp8 saturating as
PTX `cvt.rn.satfinite` does. Everything that touches no narrow type is left to Triton, but for its check of
every integer operation for overflow, which compiled kernels do not make either and which takes a third of the time.

Checked against triton 3.9. This module needs triton and torch, nothing of SGLang and nothing else of the shim.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

_FP8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_NARROW = (tl.bfloat16, *_FP8)
_MARK = "_kdtree_mended"


def _widen(handle: TensorHandle) -> np.ndarray:
    """The handle's values as float32; exact for bf16, fp8 and fp16."""
    dtype = handle.dtype.scalar
    if dtype == tl.bfloat16:
        return (handle.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in _FP8:
        bits = torch.from_numpy(np.ascontiguousarray(handle.data))
        return bits.view(_FP8[dtype]).float().numpy()
    return handle.data.astype(np.float32)


def _narrow(values: np.ndarray, dtype: tl.dtype) -> TensorHandle:
    """float32 values rounded to nearest even as bf16 or fp8 bit patterns."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == tl.bfloat16:
        bits = values.view(np.uint32)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
        return TensorHandle(np.where(np.isnan(values), np.uint16(0x7FC0), rounded), dtype)
    fp8 = _FP8[dtype]
    limit = torch.finfo(fp8).max
    # np.array copies: torch warns of read-only memory, which a broadcast array is.
    packed = torch.from_numpy(np.array(values)).clamp(-limit, limit).to(fp8)
    return TensorHandle(packed.view(torch.uint8).numpy(), dtype)


def install() -> None:
    """Replace the interpreter's narrow-type operations in this process. A second call does nothing."""
    if getattr(InterpreterBuilder, _MARK, False):
        return
    stock_dot = InterpreterBuilder.create_dot
    stock_cast = InterpreterBuilder.cast_impl
    stock_fp_to_fp = InterpreterBuilder.create_fp_to_fp
    stock_binary = InterpreterBuilder.binary_op
    stock_unary = InterpreterBuilder.unary_op

    def create_dot(
        self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *args: Any, **kwargs: Any
    ) -> TensorHandle:
        if a.dtype.scalar not in _NARROW and b.dtype.scalar not in _NARROW:
            return stock_dot(self, a, b, d, *args, **kwargs)
        product = np.matmul(_widen(a), _widen(b), dtype=np.float32)
        return TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)

    def cast_impl(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
        dst = dst_type.scalar
        if src.dtype.scalar == dst or (src.dtype.scalar not in _NARROW and dst not in _NARROW):
            return stock_cast(self, src, dst_type)
        values = _widen(src)
        if dst in _NARROW:
            return _narrow(values, dst)
        return stock_cast(self, TensorHandle(values, tl.float32), dst_type)

    def create_fp_to_fp(self: Any, src: TensorHandle, dst_type: Any, rounding_mode: Any) -> TensorHandle:
        if src.dtype.scalar in _NARROW or dst_type.scalar in _NARROW:
            return cast_impl(self, src, dst_type)
        return stock_fp_to_fp(self, src, dst_type, rounding_mode)

    def binary_op(self: Any, lhs: TensorHandle, rhs: TensorHandle, op: Any) -> TensorHandle:
        dtype = lhs.dtype.scalar
        # min and max of two bf16 arrive here too; the bitwise operations never do with a float type.
        if dtype not in _NARROW:
            return stock_binary(self, lhs, rhs, op)
        result = op(_widen(lhs), _widen(rhs))
        return TensorHandle(result, dtype) if result.dtype == np.bool_ else _narrow(result, dtype)

    def unary_op(self: Any, arg: TensorHandle, op: Any) -> TensorHandle:
        dtype = arg.dtype.scalar
        return _narrow(op(_widen(arg)), dtype) if dtype in _NARROW else stock_unary(self, arg, op)

    # The casts that have names of their own (create_fp_trunc, ...) all call self.cast_impl.
    for function in (create_dot, cast_impl, create_fp_to_fp, binary_op, unary_op):
        setattr(InterpreterBuilder, function.__name__, function)
    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)
    setattr(InterpreterBuilder, _MARK, True)
