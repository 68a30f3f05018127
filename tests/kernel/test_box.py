"""kdtree_compare's box: which request of which call is kept, that it is that request, and when it is kept."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import reference
from cases import POOLS, Case, make_call, with_pool
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.abi import Status
from kdtree_verify.native.library import Library
from kdtree_verify.rank.box import Box
from kdtree_verify.rank.records import Model
from kdtree_verify.replay.capture import Capture

CPU = torch.device("cpu")
NAN = float("nan")


class Setup:
    """A call that ours answers as stock does, until a request is spoiled; and a box."""

    def __init__(self, library: Library, case: Case, seed: int = 0, size: int = 1 << 22):
        self.harness, self.box = Harness(library), Box(CPU, size)
        self.call = make_call(case, seed)
        generator = torch.Generator().manual_seed(seed)
        self.call.o_extend.copy_(torch.randn(self.call.o_extend.shape, generator=generator))
        self.ours = self.call.o_extend.clone()

    def rows(self, request: int) -> slice:
        return slice(int(self.call.qo_indptr[request]), int(self.call.qo_indptr[request + 1]))

    def spoil(self, request: int, factor: float) -> None:
        self.ours[self.rows(request)] *= factor

    def compare(self, layer: int = 3, **changes: Any) -> int:
        args = self.box.args(self.call, self.ours, Model.DRAFT, layer)
        for name, value in changes.items():
            setattr(args, name, value)
        status = self.harness.compare(self.call, self.ours, rel_l2_bound=0.02, box=ctypes.pointer(args))
        if status == Status.OK:
            assert self.harness.record.compare_calls > 0
        return status

    def assert_is(self, found: Capture | None, request: int) -> None:
        """Every byte, against the call by the reference's own reading of it."""
        assert found is not None
        call, rows = self.call, self.rows(request)
        expected = reference.requests(call)[request]
        assert (found.model, found.layer, found.request) == (Model.DRAFT, 3, request)
        assert found.batch == len(call.qo_indptr) - 1
        assert torch.equal(found.q, call.q_extend[rows])
        assert torch.equal(found.k, call.k_extend[rows, 0])
        assert torch.equal(found.v, call.v_extend[rows, 0])
        pool = call.k_buffer.view(torch.uint8)[expected.slots, 0]
        assert found.prefix.dtype == call.k_buffer.dtype
        assert torch.equal(found.prefix.view(torch.uint8), pool.reshape(found.prefix.view(torch.uint8).shape))
        if call.custom_mask is None:
            assert found.visible is None
        else:
            assert torch.equal(found.visible.bool(), expected.visible)
        assert torch.equal(found.stock, call.o_extend[rows])
        assert torch.equal(found.ours.view(torch.int16), self.ours[rows].view(torch.int16))
        scales = torch.tensor([call.sm_scale, call.k_scale, call.v_scale])
        assert torch.equal(torch.tensor([found.sm_scale, found.k_scale, found.v_scale]), scales)
        assert (found.rel_l2, found.bound) == (self.harness.record.last_rel_l2, 0.02)


def resident() -> int:
    """Bytes of this process's memory that are there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_box_that_no_call_needs_takes_no_memory() -> None:
    before = resident()
    box = Box(CPU, 1 << 28)
    assert box.size == 1 << 28
    assert resident() - before < 1 << 24


@pytest.mark.parametrize("mask", ["tree", "any", "chain"])
@pytest.mark.parametrize("pool", POOLS)
def test_it_keeps_the_worst_request_whole(library: Library, pool: str, mask: Any) -> None:
    case = Case((40, 33, 7), (5, 9, 3), 3, mask=mask, strided=True, gap=2, indptr_dtype=torch.int64)
    setup = Setup(library, with_pool(case, pool))
    setup.spoil(0, 1.1)
    setup.spoil(1, 1.5)
    setup.spoil(2, 1.01)
    assert setup.compare() == Status.OK
    setup.assert_is(setup.box.take(), 1)
    assert setup.box.take() is None


def test_float32_calls(library: Library) -> None:
    floats = torch.float32
    setup = Setup(library, Case((9,), (4,), 2, q_dtype=floats, kv_dtype=floats, pool_dtype=floats, out_dtype=floats))
    setup.spoil(0, 2.0)
    assert setup.compare() == Status.OK
    found = setup.box.take()
    assert found.q.dtype == found.prefix.dtype == found.ours.dtype == floats
    assert torch.equal(found.stock, setup.call.o_extend)


def test_nan_comes_before_any_difference(library: Library) -> None:
    setup = Setup(library, Case((4, 4, 4), (3, 3, 3), 2))
    setup.spoil(0, 9.0)
    setup.ours[8, 1, 5] = NAN
    assert setup.compare() == Status.OK
    setup.assert_is(setup.box.take(), 2)


def test_a_call_within_its_bound_and_one_without_rows_leave_it_empty(library: Library) -> None:
    setup = Setup(library, Case((4, 4), (3, 3), 2))
    setup.spoil(0, 1.01)
    assert setup.compare() == Status.OK
    setup.spoil(1, 3.0)
    whole = setup.call
    setup.call = whole._replace(qo_indptr=torch.zeros_like(whole.qo_indptr))
    assert setup.compare() == Status.OK
    assert setup.box.take() is None
    assert (setup.box.too_large, setup.box.found_full) == (0, 0)


def test_padding_is_never_kept(library: Library) -> None:
    setup = Setup(library, Case((4, 1), (3, 3), 2))
    setup.call.kv_indices[4] = 0
    setup.ours[3:] = NAN
    setup.spoil(0, 1.5)
    assert setup.compare() == Status.OK
    setup.assert_is(setup.box.take(), 0)


def test_it_is_filled_once_until_it_is_taken(library: Library) -> None:
    setup = Setup(library, Case((4, 4), (3, 3), 2))
    setup.spoil(0, 1.5)
    for _ in range(3):
        assert setup.compare() == Status.OK
    first = setup.ours.clone()
    setup.spoil(1, 9.0)
    assert setup.compare() == Status.OK
    found = setup.box.take()
    assert (found.request, setup.box.found_full) == (0, 3)
    assert torch.equal(found.ours, first[:3])
    assert setup.compare() == Status.OK
    setup.assert_is(setup.box.take(), 1)


def test_what_does_not_fit_is_counted_not_cut(library: Library) -> None:
    """The worst that fits is kept; where none that is off fits, none is, and the box stays empty."""
    case = Case((400, 4), (3, 3), 2)
    header, heads, tokens, mask, prefix = 256, 3 * 2 * (1152 + 2 * 1024), 3 * (1152 + 1024), 16, 4 * 1152
    setup = Setup(library, case, size=header + heads + tokens + mask + prefix)
    setup.spoil(0, 9.0)
    assert setup.compare() == Status.OK
    assert (setup.box.take(), setup.box.too_large) == (None, 1)
    setup.spoil(1, 1.1)
    assert setup.compare() == Status.OK
    setup.assert_is(setup.box.take(), 1)
    assert setup.compare(memory_bytes=setup.box.size - 1) == Status.OK
    assert (setup.box.take(), setup.box.too_large) == (None, 2)


def test_more_rows_than_a_request_may_have_are_cut_as_verify_cuts_them(library: Library) -> None:
    setup = Setup(library, Case((4,), (9,), 2, mask="chain"))
    setup.call = setup.call._replace(max_len_extend=5)
    setup.spoil(0, 2.0)
    assert setup.compare() == Status.OK
    assert setup.box.take().q.shape == (5, 2, 576)


def test_numbers_out_of_range_are_not_followed(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(library, Case((40,), (3,), 2))
    setup.spoil(0, 2.0)
    setup.call.kv_indices[3], setup.call.kv_indices[7] = 2**40, -1
    assert setup.compare() == Status.OK
    assert setup.box.take() is None
    assert "2 of its pool slots are outside the pool" in caplog.text
    setup.call.kv_indices[3] = setup.call.kv_indices[7] = 1
    setup.call.mask_indptr[0] = 2**50
    assert setup.compare() == Status.OK
    assert not setup.box.take().visible.any()  # as attention takes it: the mask's block is refused
    setup.call.kv_indptr[:] = torch.tensor([-5, 2**31 - 1])
    setup.call.qo_indptr[:] = torch.tensor([-5, 2**31 - 1])
    assert setup.compare() == Status.OK
    setup.box.take()


def test_arguments_are_refused(library: Library) -> None:
    setup = Setup(library, Case((4, 4), (3, 3), 2))
    setup.spoil(0, 2.0)
    box = setup.box.args(setup.call, setup.ours, Model.TARGET, 0)
    for status, change in (
        (Status.ERR_STRUCT_SIZE, {"struct_size": 8}),
        (Status.ERR_NULL_POINTER, {"state": None}),
        (Status.ERR_NULL_POINTER, {"memory": None}),
        (Status.ERR_NULL_POINTER, {"call": None}),
        (Status.ERR_ALIGNMENT, {"state": box.state + 4}),
        (Status.ERR_ALIGNMENT, {"memory": box.memory + 8}),
        (Status.ERR_LIMIT, {"memory_bytes": ctypes.sizeof(abi.BoxHeader) - 1}),
    ):
        assert setup.compare(**change) == status, change
    for name, value in (("batch", 1), ("tokens", 5), ("num_heads", 1), ("q_dtype", abi.DType.I32)):
        other = replace_field(box.call.contents, name, value)
        expected = Status.ERR_DTYPE if name == "q_dtype" else Status.ERR_VALUE
        assert setup.compare(call=ctypes.pointer(other)) == expected, name
    assert setup.box.take() is None
    assert not setup.harness.records.any()


def replace_field(args: abi.VerifyArgs, name: str, value: int) -> abi.VerifyArgs:
    copy = abi.VerifyArgs.from_buffer_copy(args)
    setattr(copy, name, value)
    return copy
