"""One call of SGLang's extend_attention_fwd, and the same call as the library's structs."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from . import abi

_SIZE = ctypes.sizeof(abi.VerifyArgs)
_COMPARE_SIZE = ctypes.sizeof(abi.CompareArgs)
_GATE_SIZE = ctypes.sizeof(abi.GateArgs)

DTYPES: dict[torch.dtype, abi.DType] = {
    torch.float32: abi.DType.F32,
    torch.bfloat16: abi.DType.BF16,
    torch.float8_e4m3fn: abi.DType.F8_E4M3,
    torch.float8_e5m2: abi.DType.F8_E5M2,
    torch.uint8: abi.DType.U8,
    torch.bool: abi.DType.U8,
    torch.int32: abi.DType.I32,
    torch.int64: abi.DType.I64,
}


class Call(NamedTuple):
    """extend_attention_fwd's parameters: names, order and defaults are SGLang's.

    `Call(*args, **kwargs)` binds a call; contract.py holds the installed function's signature equal to this one.
    """

    q_extend: torch.Tensor
    """[tokens, heads, 576]"""
    k_extend: torch.Tensor
    """[tokens, 1, 576]"""
    v_extend: torch.Tensor
    """[tokens, 1, 512]"""
    o_extend: torch.Tensor
    """[tokens, heads, 512], written"""
    k_buffer: torch.Tensor
    """[slots, 1, 576], the layer's KV pool"""
    v_buffer: torch.Tensor
    """[slots, 1, 512], a view of k_buffer's first columns"""
    qo_indptr: torch.Tensor
    """[requests + 1]"""
    kv_indptr: torch.Tensor
    """[requests + 1], prefixes only"""
    kv_indices: torch.Tensor
    """[prefixes' sum, or more]"""
    custom_mask: torch.Tensor | None
    """flat: per request T rows of prefix + T bytes"""
    is_causal: bool
    mask_indptr: torch.Tensor | None
    """[requests or more]"""
    max_len_extend: int
    """T"""
    k_scale: float
    v_scale: float
    sm_scale: float | None = None
    logit_cap: float = 0.0
    skip_prefix_custom_mask: bool = True
    sliding_window_size: int = -1
    sinks: Any = None
    window_kv_offsets: Any = None
    xai_temperature_len: int = -1
    lse_extend: Any = None
    skip_prefix: bool = False
    skip_extend: bool = False
    page_size: int = 1
    score_mod: Any = None
    aux_tensors: Any = None
    extend_seq_lens_cpu: Any = None
    identity_kv_indices: bool = False


def verify_args(call: Call, out: torch.Tensor) -> abi.VerifyArgs:
    """The call for kdtree_verify, written to `out`; an eligible call (eligibility.call_reason) only.

    Device, stream, workspace and records are left to the caller.
    """
    q, k, v, pool, mask = call.q_extend, call.k_extend, call.v_extend, call.k_buffer, call.custom_mask
    args = abi.VerifyArgs(_SIZE)
    args.q, args.k, args.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    args.pool, args.out = pool.data_ptr(), out.data_ptr()
    args.q_stride_token, args.q_stride_head, _ = q.stride()
    args.k_stride_token, args.v_stride_token = k.stride(0), v.stride(0)
    args.pool_stride_slot = pool.stride(0)
    args.out_stride_token, args.out_stride_head, _ = out.stride()
    args.tokens, args.num_heads, _ = q.shape
    args.slots = pool.shape[0]
    args.max_q_len = call.max_len_extend
    args.q_dtype, args.kv_dtype = DTYPES[q.dtype], DTYPES[k.dtype]
    args.pool_dtype, args.out_dtype = DTYPES[pool.dtype], DTYPES[out.dtype]
    args.sm_scale, args.k_scale, args.v_scale = call.sm_scale, call.k_scale, call.v_scale
    _set_requests(args, call)
    if mask is not None and call.mask_indptr is not None:
        args.mask, args.mask_len, args.mask_dtype = mask.data_ptr(), mask.shape[0], abi.DType.U8
        args.mask_indptr, args.mask_indptr_dtype = call.mask_indptr.data_ptr(), DTYPES[call.mask_indptr.dtype]
    return args


def compare_args(call: Call, ours: torch.Tensor) -> abi.CompareArgs:
    """Stock's output of the call (`call.o_extend`) against ours, for kdtree_compare; bounds left to the caller."""
    stock = call.o_extend
    args = abi.CompareArgs(_COMPARE_SIZE)
    args.stock, args.ours = stock.data_ptr(), ours.data_ptr()
    args.stock_stride_token, args.stock_stride_head, _ = stock.stride()
    args.ours_stride_token, args.ours_stride_head, _ = ours.stride()
    args.tokens, args.num_heads, _ = stock.shape
    args.stock_dtype, args.ours_dtype = DTYPES[stock.dtype], DTYPES[ours.dtype]
    _set_requests(args, call)
    return args


def gate_args(call: Call, gated: Call) -> abi.GateArgs:
    """For kdtree_gate, from the call's indptrs to those of `gated`; counter, every and phase left to the caller."""
    qo, kv = call.qo_indptr, call.kv_indptr
    args = abi.GateArgs(_GATE_SIZE)
    args.batch = qo.shape[0] - 1
    args.qo_indptr, args.qo_indptr_dtype = qo.data_ptr(), DTYPES[qo.dtype]
    args.kv_indptr, args.kv_indptr_dtype = kv.data_ptr(), DTYPES[kv.dtype]
    args.gated_qo_indptr, args.gated_kv_indptr = gated.qo_indptr.data_ptr(), gated.kv_indptr.data_ptr()
    return args


def _set_requests(args: abi.VerifyArgs | abi.CompareArgs, call: Call) -> None:
    qo, kv, indices = call.qo_indptr, call.kv_indptr, call.kv_indices
    args.batch = qo.shape[0] - 1
    args.qo_indptr, args.qo_indptr_dtype = qo.data_ptr(), DTYPES[qo.dtype]
    args.kv_indptr, args.kv_indptr_dtype = kv.data_ptr(), DTYPES[kv.dtype]
    args.kv_indices, args.kv_indices_dtype = indices.data_ptr(), DTYPES[indices.dtype]
    args.kv_indices_len = indices.shape[0]
