"""Which verify calls are ours. Every other one runs stock and is counted under its reason.

Only shapes, dtypes, strides, addresses and host numbers are looked at: nothing here waits for the device.
What is not known is not ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from ..native import abi
from ..native.call import DTYPES, Call
from ..native.library import Description


class Reason(StrEnum):
    """Why a TARGET_VERIFY call was left to stock. The values are stable names: they are counted and reported."""

    NOT_MLA = "not_mla"
    HEAD_DIM = "head_dim"
    KV_HEADS = "kv_heads"
    QUERY_HEADS = "query_heads"
    SINKS = "sinks"
    SCORE_MOD = "score_mod"
    AUX_TENSORS = "aux_tensors"
    LOGIT_CAP = "logit_cap"
    XAI_TEMPERATURE = "xai_temperature"
    SLIDING_WINDOW = "sliding_window"
    CROSS_ATTENTION = "cross_attention"
    NOT_CAUSAL = "not_causal"
    DETERMINISTIC = "deterministic"
    DCP = "dcp"
    DLLM = "dllm"
    STREAMS = "streams"
    """The process runs batches on two streams at the same time, and the workspace is for one."""
    BYPASSED = "bypassed"
    """forward_extend took a path that never reached extend_attention_fwd."""
    PARTIAL = "partial"
    """Only the prefix or only the draft tokens were asked for, or an LSE beside the output."""
    Q_SHAPE = "q_shape"
    Q_DTYPE = "q_dtype"
    KV_SHAPE = "kv_shape"
    KV_DTYPE = "kv_dtype"
    OUT = "out"
    POOL_LAYOUT = "pool_layout"
    POOL_DTYPE = "pool_dtype"
    INDEX_LAYOUT = "index_layout"
    MASK_LAYOUT = "mask_layout"
    MASK_SIZE = "mask_size"
    DRAFT_TOKENS = "draft_tokens"
    BATCH = "batch"
    SCALE = "scale"
    DEVICE = "device"
    ALIGNMENT = "alignment"
    LAYERS = "layers"
    """More layers than there are records."""
    LAUNCH_FAILED = "launch_failed"
    """Ours was refused or failed (validate only: with `on` that ends the server)."""
    UNKNOWN = "unknown"
    """The call could not be examined."""


@dataclass(frozen=True)
class Limits:
    """What a library takes on its device."""

    device: torch.device
    q_dtypes: frozenset[torch.dtype]
    pool_dtypes: frozenset[torch.dtype]
    out_dtypes: frozenset[torch.dtype]
    alignment: int
    """Bytes to which rows of q, k, v, pool and out must be aligned."""
    heads: int
    draft_tokens: int
    batch: int

    @staticmethod
    def of(description: Description, device: torch.device) -> Limits:
        return Limits(
            device=device,
            q_dtypes=_torch_dtypes(description.q_dtypes),
            pool_dtypes=_torch_dtypes(description.pool_dtypes),
            out_dtypes=_torch_dtypes(description.out_dtypes),
            alignment=16 if device.type == "cuda" else 1,
            heads=description.max_heads,
            draft_tokens=description.max_draft_tokens,
            batch=description.max_batch,
        )


def _torch_dtypes(dtypes: frozenset[abi.DType]) -> frozenset[torch.dtype]:
    return frozenset(dtype for dtype, code in DTYPES.items() if code in dtypes)


def runner_reason(model_runner: Any) -> Reason | None:
    """Why no call of this process can be ours, or None.

    Verify calls share a workspace, so they must follow each other. They do: a process has one stream for forward
    passes, on which two-batch overlap issues its halves in turn, and plan streams prepare metadata only. Only
    PD multiplexing runs batches on two streams at once.
    """
    return Reason.STREAMS if model_runner.server_args.enable_pdmux else None


def backend_reason(backend: Any) -> Reason | None:
    """Why no call of this backend instance can be ours, or None."""
    if not backend.use_mla:
        return Reason.NOT_MLA
    if backend.enable_deterministic:
        return Reason.DETERMINISTIC
    if backend.dcp_size != 1:
        return Reason.DCP
    if backend.dllm_block_size is not None or getattr(backend, "dllm_attention", None) is not None:
        return Reason.DLLM
    return None


def forward_reason(backend: Any, layer: Any, sinks: Any, score_mod: Any, aux_tensors: Any) -> Reason | None:
    """Why this TARGET_VERIFY call of forward_extend is not ours before stock's method has run, or None."""
    if (reason := backend_reason(backend)) is not None:
        return reason
    if layer.qk_head_dim != abi.QK_DIM or layer.v_head_dim != abi.V_DIM:
        return Reason.HEAD_DIM
    if layer.tp_k_head_num != 1 or layer.tp_v_head_num != 1:
        return Reason.KV_HEADS
    if layer.is_cross_attention:
        return Reason.CROSS_ATTENTION
    if layer.attn_type.value != "decoder":
        return Reason.NOT_CAUSAL
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        return Reason.SLIDING_WINDOW
    return _extras(sinks, score_mod, aux_tensors, layer.logit_cap, layer.xai_temperature_len)


def call_reason(call: Call, limits: Limits) -> Reason | None:
    """Why this call of extend_attention_fwd is not ours, or None: then `call.verify_args` may read it."""
    return (
        _extras(call.sinks, call.score_mod, call.aux_tensors, call.logit_cap, call.xai_temperature_len)
        or _kind(call)
        or _query(call, limits)
        or _draft_rows(call, limits)
        or _pool(call, limits)
        or _requests(call, limits)
        or _mask(call)
        or _placement(call, limits)
    )


def _extras(sinks: Any, score_mod: Any, aux_tensors: Any, logit_cap: float, xai_temperature: int) -> Reason | None:
    if sinks is not None:
        return Reason.SINKS
    if score_mod is not None:
        return Reason.SCORE_MOD
    if aux_tensors is not None:
        return Reason.AUX_TENSORS
    if logit_cap != 0:
        return Reason.LOGIT_CAP
    if xai_temperature is not None and xai_temperature > 0:
        return Reason.XAI_TEMPERATURE
    return None


def _kind(call: Call) -> Reason | None:
    if not call.is_causal:
        return Reason.NOT_CAUSAL
    if call.sliding_window_size >= 0 or call.window_kv_offsets is not None:
        return Reason.SLIDING_WINDOW
    if call.lse_extend is not None or call.skip_prefix or call.skip_extend or call.identity_kv_indices:
        return Reason.PARTIAL
    scales = (call.sm_scale, call.k_scale, call.v_scale)
    if not all(isinstance(scale, (float, int)) and math.isfinite(scale) for scale in scales):
        return Reason.SCALE
    return None


def _query(call: Call, limits: Limits) -> Reason | None:
    q, out = call.q_extend, call.o_extend
    if q.dim() != 3 or q.shape[2] != abi.QK_DIM or q.stride(2) != 1:
        return Reason.Q_SHAPE
    if q.dtype not in limits.q_dtypes:
        return Reason.Q_DTYPE
    tokens, heads, _ = q.shape
    if not 1 <= heads <= limits.heads:
        return Reason.QUERY_HEADS
    if out.shape != (tokens, heads, abi.V_DIM) or out.stride(2) != 1 or out.dtype not in limits.out_dtypes:
        return Reason.OUT
    return None


def _draft_rows(call: Call, limits: Limits) -> Reason | None:
    tokens = call.q_extend.shape[0]
    k, v = call.k_extend, call.v_extend
    if k.dtype != call.q_extend.dtype or v.dtype != k.dtype:
        return Reason.KV_DTYPE
    if k.shape != (tokens, 1, abi.QK_DIM) or v.shape != (tokens, 1, abi.V_DIM):
        return Reason.KV_SHAPE
    if k.stride(2) != 1 or v.stride(2) != 1:
        return Reason.KV_SHAPE
    return None


def _pool(call: Call, limits: Limits) -> Reason | None:
    pool, values = call.k_buffer, call.v_buffer
    if pool.dim() != 3 or values.dim() != 3 or pool.stride(2) != 1:
        return Reason.POOL_LAYOUT
    slots, heads, width = pool.shape
    if heads != 1 or width != abi.QK_DIM or values.shape != (slots, 1, abi.V_DIM):
        return Reason.POOL_LAYOUT
    # The library reads values from the key rows: they must be the same memory.
    if (
        values.data_ptr() != pool.data_ptr()
        or values.stride(0) != pool.stride(0)
        or values.stride(2) != 1
        or values.dtype != pool.dtype
    ):
        return Reason.POOL_LAYOUT
    return None if pool.dtype in limits.pool_dtypes else Reason.POOL_DTYPE


_INDEX_DTYPES = frozenset((torch.int32, torch.int64))


def _is_flat(tensor: Any, dtypes: frozenset[torch.dtype]) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dim() == 1
        and tensor.dtype in dtypes
        and (tensor.stride(0) == 1 or tensor.shape[0] <= 1)
    )


def _requests(call: Call, limits: Limits) -> Reason | None:
    qo, kv = call.qo_indptr, call.kv_indptr
    if not all(_is_flat(tensor, _INDEX_DTYPES) for tensor in (qo, kv, call.kv_indices)):
        return Reason.INDEX_LAYOUT
    batch = qo.shape[0] - 1
    if batch < 0 or kv.shape[0] < batch + 1:
        return Reason.INDEX_LAYOUT
    if batch > limits.batch:
        return Reason.BATCH
    longest = call.max_len_extend
    if not isinstance(longest, int) or not 1 <= longest <= limits.draft_tokens:
        return Reason.DRAFT_TOKENS
    return None


_MASK_DTYPES = frozenset((torch.uint8, torch.bool))


def _mask(call: Call) -> Reason | None:
    mask, offsets = call.custom_mask, call.mask_indptr
    if mask is None:
        return None
    batch = call.qo_indptr.shape[0] - 1
    if not _is_flat(mask, _MASK_DTYPES) or not call.skip_prefix_custom_mask:
        return Reason.MASK_LAYOUT
    if offsets is None or not _is_flat(offsets, _INDEX_DTYPES) or offsets.shape[0] < batch:
        return Reason.MASK_LAYOUT
    # The lengths are on the device, which bounds every read. What can be said here: a mask holds at least the
    # rows of one request of T tokens on an empty prefix (requests padded in eager mode bring none of their own).
    if mask.shape[0] < call.max_len_extend**2:
        return Reason.MASK_SIZE
    return None


def _placement(call: Call, limits: Limits) -> Reason | None:
    rows = (call.q_extend, call.k_extend, call.v_extend, call.o_extend, call.k_buffer)
    small = (call.qo_indptr, call.kv_indptr, call.kv_indices, call.custom_mask, call.mask_indptr)
    if any(tensor is not None and tensor.device != limits.device for tensor in (*rows, *small)):
        return Reason.DEVICE
    if limits.alignment > 1:
        for tensor in rows:
            size = tensor.element_size()
            if tensor.data_ptr() % limits.alignment or any(
                stride * size % limits.alignment for stride in tensor.stride()[:-1]
            ):
                return Reason.ALIGNMENT
    return None
