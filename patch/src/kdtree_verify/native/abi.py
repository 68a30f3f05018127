"""kernel/include/kdtree_verify.h in ctypes: the same names, order and types.

tests/kernel holds every size and offset here equal to the C compiler's.
"""

from __future__ import annotations

import ctypes as c
from enum import IntEnum

ABI_VERSION = 2
QK_DIM, V_DIM = 576, 512
MAX_HEADS, MAX_DRAFT_TOKENS, MAX_BATCH = 128, 256, 1024
PREFIX_BUCKETS, BATCH_BUCKETS = 9, 8


class Status(IntEnum):
    OK = 0
    ERR_STRUCT_SIZE = 1
    ERR_NULL_POINTER = 2
    ERR_DTYPE = 3
    ERR_LIMIT = 4
    ERR_STRIDE = 5
    ERR_ALIGNMENT = 6
    ERR_WORKSPACE = 7
    ERR_DEVICE = 8
    ERR_ARCH = 9
    ERR_LAUNCH = 10
    ERR_VALUE = 11


class DType(IntEnum):
    F32 = 0
    BF16 = 1
    F8_E4M3 = 2
    F8_E5M2 = 3
    U8 = 4
    I32 = 5
    I64 = 6


class LayerRecord(c.Structure):
    """kdtree_layer_record: what one layer's calls add up to (128 bytes)."""

    _fields_ = [
        ("kernel_calls", c.c_uint64),
        ("kernel_rows", c.c_uint64),
        ("out_of_range", c.c_uint64),
        ("compare_calls", c.c_uint64),
        ("compare_rows", c.c_uint64),
        ("nonfinite", c.c_uint64),
        ("exceeded_calls", c.c_uint64),
        ("max_abs", c.c_double),
        ("sum_sq_diff", c.c_double),
        ("sum_sq_stock", c.c_double),
        ("worst_rel_l2", c.c_double),
        ("last_rel_l2", c.c_double),
        ("last_max_abs", c.c_double),
        ("reserved", c.c_uint64 * 3),
    ]


class ShapeRecord(c.Structure):
    """kdtree_shape_record: what the compared calls of one range of shapes add up to (64 bytes)."""

    _fields_ = [
        ("calls", c.c_uint64),
        ("exceeded_calls", c.c_uint64),
        ("nonfinite", c.c_uint64),
        ("worst_rel_l2", c.c_double),
        ("sum_rel_l2", c.c_double),
        ("timed_calls", c.c_uint64),
        ("stock_ns", c.c_uint64),
        ("kernel_ns", c.c_uint64),
    ]


class VerifyArgs(c.Structure):
    """kdtree_verify_args: one tree-verify attention call."""

    _fields_ = [
        ("struct_size", c.c_uint64),
        ("q", c.c_void_p),
        ("k", c.c_void_p),
        ("v", c.c_void_p),
        ("pool", c.c_void_p),
        ("out", c.c_void_p),
        ("q_stride_token", c.c_int64),
        ("q_stride_head", c.c_int64),
        ("k_stride_token", c.c_int64),
        ("v_stride_token", c.c_int64),
        ("pool_stride_slot", c.c_int64),
        ("out_stride_token", c.c_int64),
        ("out_stride_head", c.c_int64),
        ("qo_indptr", c.c_void_p),
        ("kv_indptr", c.c_void_p),
        ("kv_indices", c.c_void_p),
        ("mask", c.c_void_p),
        ("mask_indptr", c.c_void_p),
        ("kv_indices_len", c.c_int64),
        ("mask_len", c.c_int64),
        ("tokens", c.c_int64),
        ("slots", c.c_int64),
        ("batch", c.c_int32),
        ("num_heads", c.c_int32),
        ("max_q_len", c.c_int32),
        ("q_dtype", c.c_int32),
        ("kv_dtype", c.c_int32),
        ("pool_dtype", c.c_int32),
        ("out_dtype", c.c_int32),
        ("qo_indptr_dtype", c.c_int32),
        ("kv_indptr_dtype", c.c_int32),
        ("kv_indices_dtype", c.c_int32),
        ("mask_dtype", c.c_int32),
        ("mask_indptr_dtype", c.c_int32),
        ("sm_scale", c.c_float),
        ("k_scale", c.c_float),
        ("v_scale", c.c_float),
        ("variant", c.c_int32),
        ("device", c.c_int32),
        ("stream", c.c_void_p),
        ("workspace", c.c_void_p),
        ("workspace_bytes", c.c_uint64),
        ("record", c.c_void_p),
        ("mirror", c.c_void_p),
    ]


class BoxHeader(c.Structure):
    """kdtree_box_header: what the box holds, and where (256 bytes)."""

    _fields_ = [
        ("sealed", c.c_uint64),
        ("emptied", c.c_uint64),
        ("too_large", c.c_uint64),
        ("found_full", c.c_uint64),
        ("tag", c.c_uint64),
        ("rel_l2", c.c_double),
        ("rel_l2_bound", c.c_double),
        ("prefix_len", c.c_int64),
        ("refused", c.c_uint64),
        ("request", c.c_int32),
        ("batch", c.c_int32),
        ("draft_tokens", c.c_int32),
        ("num_heads", c.c_int32),
        ("q_dtype", c.c_int32),
        ("kv_dtype", c.c_int32),
        ("pool_dtype", c.c_int32),
        ("out_dtype", c.c_int32),
        ("masked", c.c_int32),
        ("sm_scale", c.c_float),
        ("k_scale", c.c_float),
        ("v_scale", c.c_float),
        ("q", c.c_uint64),
        ("k", c.c_uint64),
        ("v", c.c_uint64),
        ("visible", c.c_uint64),
        ("prefix", c.c_uint64),
        ("stock", c.c_uint64),
        ("ours", c.c_uint64),
        ("bytes", c.c_uint64),
        ("reserved", c.c_uint64 * 9),
    ]


class BoxState(c.Structure):
    """kdtree_box_state: what the device knows of its box (32 bytes)."""

    _fields_ = [
        ("filled", c.c_uint64),
        ("too_large", c.c_uint64),
        ("found_full", c.c_uint64),
        ("reserved", c.c_uint64),
    ]


class BoxArgs(c.Structure):
    """kdtree_box_args: the box of a compared call, and the call's inputs."""

    _fields_ = [
        ("struct_size", c.c_uint64),
        ("call", c.POINTER(VerifyArgs)),
        ("state", c.c_void_p),
        ("memory", c.c_void_p),
        ("memory_bytes", c.c_uint64),
        ("tag", c.c_uint64),
    ]


class CompareArgs(c.Structure):
    """kdtree_compare_args: stock's output against ours."""

    _fields_ = [
        ("struct_size", c.c_uint64),
        ("stock", c.c_void_p),
        ("ours", c.c_void_p),
        ("stock_stride_token", c.c_int64),
        ("stock_stride_head", c.c_int64),
        ("ours_stride_token", c.c_int64),
        ("ours_stride_head", c.c_int64),
        ("qo_indptr", c.c_void_p),
        ("kv_indptr", c.c_void_p),
        ("kv_indices", c.c_void_p),
        ("kv_indices_len", c.c_int64),
        ("tokens", c.c_int64),
        ("batch", c.c_int32),
        ("num_heads", c.c_int32),
        ("stock_dtype", c.c_int32),
        ("ours_dtype", c.c_int32),
        ("qo_indptr_dtype", c.c_int32),
        ("kv_indptr_dtype", c.c_int32),
        ("kv_indices_dtype", c.c_int32),
        ("device", c.c_int32),
        ("rel_l2_bound", c.c_double),
        ("max_abs_bound", c.c_double),
        ("stream", c.c_void_p),
        ("workspace", c.c_void_p),
        ("workspace_bytes", c.c_uint64),
        ("record", c.c_void_p),
        ("mirror", c.c_void_p),
        ("shapes", c.c_void_p),
        ("shapes_mirror", c.c_void_p),
        ("stamps", c.c_void_p),
        ("box", c.POINTER(BoxArgs)),
    ]


class GateArgs(c.Structure):
    """kdtree_gate_args: one call of so many goes through."""

    _fields_ = [
        ("struct_size", c.c_uint64),
        ("qo_indptr", c.c_void_p),
        ("kv_indptr", c.c_void_p),
        ("gated_qo_indptr", c.c_void_p),
        ("gated_kv_indptr", c.c_void_p),
        ("counter", c.c_void_p),
        ("every", c.c_uint64),
        ("phase", c.c_uint64),
        ("batch", c.c_int32),
        ("qo_indptr_dtype", c.c_int32),
        ("kv_indptr_dtype", c.c_int32),
        ("device", c.c_int32),
        ("stream", c.c_void_p),
    ]


class WorkspaceArgs(c.Structure):
    """kdtree_workspace_args: the limits that size a workspace."""

    _fields_ = [
        ("struct_size", c.c_uint64),
        ("device", c.c_int32),
        ("num_heads", c.c_int32),
        ("max_q_len", c.c_int32),
        ("max_batch", c.c_int32),
    ]


class Description(c.Structure):
    """kdtree_description: what a library says of itself."""

    _fields_ = [
        ("struct_size", c.c_uint64),
        ("abi_version", c.c_uint32),
        ("num_variants", c.c_uint32),
        ("version", c.c_char * 32),
        ("device_kind", c.c_char * 16),
        ("archs", c.c_char * 64),
        ("compiler", c.c_char * 64),
        ("source_hash", c.c_char * 65),
        ("pad_", c.c_char * 3),
        ("q_dtypes", c.c_uint32),
        ("pool_dtypes", c.c_uint32),
        ("out_dtypes", c.c_uint32),
        ("qk_dim", c.c_int32),
        ("v_dim", c.c_int32),
        ("max_heads", c.c_int32),
        ("max_draft_tokens", c.c_int32),
        ("max_batch", c.c_int32),
    ]


# name -> (result type, argument types); every function of the header.
FUNCTIONS: dict[str, tuple[type, list[type]]] = {
    "kdtree_abi_version": (c.c_uint32, []),
    "kdtree_status_string": (c.c_char_p, [c.c_int]),
    "kdtree_describe": (c.c_int, [c.POINTER(Description)]),
    "kdtree_variant_name": (c.c_char_p, [c.c_int]),
    "kdtree_supports_device": (c.c_int, [c.c_int]),
    "kdtree_workspace_size": (c.c_int, [c.POINTER(WorkspaceArgs), c.POINTER(c.c_uint64)]),
    "kdtree_verify": (c.c_int, [c.POINTER(VerifyArgs)]),
    "kdtree_compare": (c.c_int, [c.POINTER(CompareArgs)]),
    "kdtree_count": (c.c_int, [c.c_void_p, c.c_void_p, c.c_int, c.c_void_p]),
    "kdtree_stamp": (c.c_int, [c.c_void_p, c.c_int, c.c_void_p]),
    "kdtree_gate": (c.c_int, [c.POINTER(GateArgs)]),
}
