"""A call with a bad argument is refused with its status, and writes nothing."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest
import torch

from cases import Case, make_call
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.abi import DType, Status
from kdtree_verify.native.library import Library

F32_OUT = Case((9, 0), (4, 3), 2, q_dtype=torch.float32, kv_dtype=torch.float32, pool_dtype=torch.float32)
HUGE = 2**41

VERIFY: list[tuple[Status, dict[str, Any]]] = [
    (Status.ERR_STRUCT_SIZE, {"struct_size": ctypes.sizeof(abi.VerifyArgs) - 8}),
    (Status.ERR_STRUCT_SIZE, {"struct_size": 0}),
    *(
        (Status.ERR_NULL_POINTER, {name: None})
        for name in ("q", "k", "v", "pool", "out", "qo_indptr", "kv_indptr", "kv_indices")
    ),
    (Status.ERR_NULL_POINTER, {"mask": None}),  # mask_len says there is one
    (Status.ERR_VALUE, {"mask_indptr": None}),
    *((Status.ERR_DTYPE, {name: DType.I32}) for name in ("q_dtype", "kv_dtype", "pool_dtype", "out_dtype")),
    (Status.ERR_DTYPE, {"q_dtype": DType.F8_E4M3}),
    (Status.ERR_DTYPE, {"kv_dtype": DType.F8_E5M2}),
    (Status.ERR_DTYPE, {"pool_dtype": DType.U8}),
    (Status.ERR_DTYPE, {"out_dtype": -1}),
    (Status.ERR_DTYPE, {"out_dtype": 4096}),
    *(
        (Status.ERR_DTYPE, {name: DType.BF16})
        for name in ("qo_indptr_dtype", "kv_indptr_dtype", "kv_indices_dtype", "mask_dtype", "mask_indptr_dtype")
    ),
    *((Status.ERR_LIMIT, {name: -1}) for name in ("tokens", "slots", "batch", "kv_indices_len", "mask_len")),
    *((Status.ERR_LIMIT, {name: HUGE}) for name in ("tokens", "slots", "kv_indices_len", "mask_len")),
    (Status.ERR_LIMIT, {"batch": abi.MAX_BATCH + 1}),
    (Status.ERR_LIMIT, {"num_heads": 0}),
    (Status.ERR_LIMIT, {"num_heads": abi.MAX_HEADS + 1}),
    (Status.ERR_LIMIT, {"max_q_len": 0}),
    (Status.ERR_LIMIT, {"max_q_len": abi.MAX_DRAFT_TOKENS + 1}),
    (Status.ERR_LIMIT, {"pool_stride_slot": 2**62}),
    *((Status.ERR_STRIDE, {name: 575}) for name in ("q_stride_token", "q_stride_head", "k_stride_token")),
    (Status.ERR_STRIDE, {"pool_stride_slot": 575}),
    *((Status.ERR_STRIDE, {name: 511}) for name in ("v_stride_token", "out_stride_token", "out_stride_head")),
    (Status.ERR_STRIDE, {"out_stride_token": 512}),  # tokens would overlap heads
    (Status.ERR_STRIDE, {"q_stride_token": -1152}),
    (Status.ERR_WORKSPACE, {"workspace": None}),
    (Status.ERR_WORKSPACE, {"workspace_bytes": 0}),
    (Status.ERR_DEVICE, {"device": 0}),
    (Status.ERR_DEVICE, {"stream": 1}),
    *(
        (Status.ERR_VALUE, {name: value})
        for name in ("sm_scale", "k_scale", "v_scale")
        for value in (math.nan, math.inf)
    ),
    (Status.ERR_VALUE, {"sm_scale": 2.4e38}),  # times log2(e) it is infinite
    (Status.ERR_VALUE, {"sm_scale": -1e30, "k_scale": 1e9}),
    (Status.ERR_VALUE, {"variant": -1}),
    (Status.ERR_VALUE, {"variant": 2}),
]

COMPARE: list[tuple[Status, dict[str, Any]]] = [
    (Status.ERR_STRUCT_SIZE, {"struct_size": 1}),
    *(
        (Status.ERR_NULL_POINTER, {name: None})
        for name in ("stock", "ours", "qo_indptr", "kv_indptr", "kv_indices", "record")
    ),
    *((Status.ERR_DTYPE, {name: DType.F8_E4M3}) for name in ("stock_dtype", "ours_dtype")),
    *((Status.ERR_DTYPE, {name: DType.U8}) for name in ("qo_indptr_dtype", "kv_indptr_dtype", "kv_indices_dtype")),
    *((Status.ERR_LIMIT, {name: -1}) for name in ("tokens", "batch", "kv_indices_len", "num_heads")),
    (Status.ERR_LIMIT, {"batch": abi.MAX_BATCH + 1}),
    *(
        (Status.ERR_STRIDE, {name: 511})
        for name in ("stock_stride_token", "stock_stride_head", "ours_stride_token", "ours_stride_head")
    ),
    (Status.ERR_DEVICE, {"device": 3}),
    (Status.ERR_DEVICE, {"stream": 8}),
    (Status.ERR_VALUE, {"rel_l2_bound": math.nan}),
    (Status.ERR_VALUE, {"max_abs_bound": math.nan}),
]


def _name(value: object) -> str:
    return value.name if isinstance(value, Status) else " ".join(f"{k}={v}" for k, v in value.items())


@pytest.mark.parametrize(("status", "broken"), VERIFY, ids=_name)
def test_verify_refuses(library: Library, status: Status, broken: dict[str, Any]) -> None:
    call, harness = make_call(F32_OUT), Harness(library)
    before = call.o_extend.clone()
    workspace = harness.workspace.clone()
    assert harness.verify(call, **broken) == status
    assert torch.equal(call.o_extend, before)
    assert torch.equal(harness.workspace, workspace)
    assert not harness.records.any()
    assert harness.verify(call) == Status.OK  # only what was broken was wrong


def test_scales_whose_products_are_finite_are_taken(library: Library) -> None:
    call, harness = make_call(F32_OUT), Harness(library)
    assert harness.verify(call, sm_scale=2.3e38) == Status.OK
    assert harness.verify(call, sm_scale=1e30, k_scale=1e8) == Status.OK


@pytest.mark.parametrize(("status", "broken"), COMPARE, ids=_name)
def test_compare_refuses(library: Library, status: Status, broken: dict[str, Any]) -> None:
    call, harness = make_call(F32_OUT), Harness(library)
    assert harness.compare(call, call.o_extend, **broken) == status
    assert not harness.records.any()
    assert harness.compare(call, call.o_extend) == Status.OK


@pytest.mark.parametrize("name", ["q", "k", "v", "pool", "out", "qo_indptr", "kv_indptr", "kv_indices", "mask_indptr"])
def test_verify_refuses_what_is_not_aligned_to_its_elements(library: Library, name: str) -> None:
    call, harness = make_call(F32_OUT), Harness(library)
    args = harness.verify_args(call)
    setattr(args, name, getattr(args, name) + 1)
    assert library.verify(args) == Status.ERR_ALIGNMENT


@pytest.mark.parametrize("name", ["record", "mirror", "workspace"])
def test_verify_refuses_unaligned_memory_of_its_own(library: Library, name: str) -> None:
    call, harness = make_call(F32_OUT), Harness(library)
    args = harness.verify_args(call)
    setattr(args, name, getattr(args, name) + 4)
    args.workspace_bytes += 64
    assert library.verify(args) == Status.ERR_ALIGNMENT


def test_one_byte_of_workspace_less_is_too_little(library: Library) -> None:
    harness = Harness(library)
    bytes_needed = library.workspace_size(device=-1, num_heads=2, max_q_len=4, max_batch=2)
    call = make_call(F32_OUT)
    assert harness.verify(call, workspace_bytes=bytes_needed - 1) == Status.ERR_WORKSPACE
    assert harness.verify(call, workspace_bytes=bytes_needed) == Status.OK


def test_what_is_not_there_needs_no_address_and_no_stride(library: Library) -> None:
    """torch gives an empty tensor NULL, and a dimension of size 1 any stride."""
    call, harness = make_call(Case((0,), (1,), 1, mask="chain")), Harness(library)
    fields = {"kv_indices": None, "kv_indices_len": 0, "pool": None, "slots": 0}
    strides = ("q_stride_token", "q_stride_head", "k_stride_token", "v_stride_token", "out_stride_token")
    assert harness.verify(call, **fields, **dict.fromkeys(strides, 1), pool_stride_slot=0) == Status.OK
    assert torch.equal(call.o_extend[0, 0], call.v_extend[0, 0])


def test_no_record(library: Library) -> None:
    call, harness = make_call(F32_OUT), Harness(library)
    assert harness.verify(call, record=None) == Status.OK
    assert not harness.records.any()  # a mirror mirrors a record


def test_workspace_size_refuses(library: Library) -> None:
    functions, size = library.functions, ctypes.c_uint64(7)

    def ask(**fields: int) -> int:
        args = abi.WorkspaceArgs(ctypes.sizeof(abi.WorkspaceArgs), -1, 8, 16, 4)
        for name, value in fields.items():
            setattr(args, name, value)
        return functions.kdtree_workspace_size(args, size)

    assert ask(struct_size=0) == Status.ERR_STRUCT_SIZE
    assert ask(device=0) == Status.ERR_DEVICE
    for name, limit in (("num_heads", 128), ("max_q_len", 256), ("max_batch", 1024)):
        assert ask(**{name: limit + 1}) == Status.ERR_LIMIT
        assert ask(**{name: -1}) == Status.ERR_LIMIT
    assert functions.kdtree_workspace_size(None, size) == Status.ERR_NULL_POINTER
    assert functions.kdtree_workspace_size(abi.WorkspaceArgs(), None) == Status.ERR_NULL_POINTER
    assert size.value == 7
    assert ask() == Status.OK
    assert size.value > 7


def test_the_others_refuse_null_and_foreign_structs(library: Library) -> None:
    functions = library.functions
    assert functions.kdtree_verify(None) == Status.ERR_NULL_POINTER
    assert functions.kdtree_compare(None) == Status.ERR_NULL_POINTER
    assert functions.kdtree_describe(None) == Status.ERR_NULL_POINTER
    assert functions.kdtree_describe(abi.Description(struct_size=1)) == Status.ERR_STRUCT_SIZE
    assert functions.kdtree_supports_device(-1) == Status.OK
    assert functions.kdtree_supports_device(0) == Status.ERR_DEVICE
    assert functions.kdtree_variant_name(0) is None
    assert functions.kdtree_variant_name(len(library.description.variants) + 1) is None


def test_count(library: Library) -> None:
    counter, mirror = ctypes.c_uint64(2**40), ctypes.c_uint64()
    address, mirrored = ctypes.addressof(counter), ctypes.addressof(mirror)
    assert library.count(None, mirrored, -1, None) == Status.ERR_NULL_POINTER
    assert library.count(address, mirrored, 0, None) == Status.ERR_DEVICE
    assert (counter.value, mirror.value) == (2**40, 0)
    assert library.count(address, mirrored, -1, None) == Status.OK
    assert (counter.value, mirror.value) == (2**40 + 1, 2**40 + 1)
    assert library.count(address, None, -1, None) == Status.OK
    assert (counter.value, mirror.value) == (2**40 + 2, 2**40 + 1)


def test_every_status_has_a_text_of_its_own(library: Library) -> None:
    texts = [library.status_text(status) for status in Status]
    assert len(set(texts)) == len(texts)
    assert library.status_text(-5) == library.status_text(99) == "unknown status"
    assert all(text and "\n" not in text for text in texts)


def test_every_status_that_a_host_can_see_is_provoked_here() -> None:
    provoked = {status for status, _ in VERIFY + COMPARE} | {Status.OK, Status.ERR_ALIGNMENT}
    assert provoked == set(Status) - {Status.ERR_ARCH, Status.ERR_LAUNCH}  # a GPU's alone
