"""kdtree_compare's table of shapes: which cell a call falls into, what it adds there, and when it counts as timed."""

from __future__ import annotations

import ctypes
import math
import time

import pytest
import torch

from cases import Case, make_call
from harness import Harness, fields
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library


def outputs(call: Call, noise: float = 0.01, seed: int = 0) -> tuple[Call, torch.Tensor]:
    """The call with a random stock output, and ours beside it."""
    generator = torch.Generator().manual_seed(seed)
    call.o_extend.copy_(torch.randn(call.o_extend.shape, generator=generator))
    return call, (call.o_extend.float() + noise * torch.randn(call.o_extend.shape, generator=generator)).bfloat16()


def expected_cell(longest: int, requests: int) -> tuple[int, int]:
    prefixes = [1024 * 2**i for i in range(8)]
    batches = [2, 4, 8, 16, 32, 64, 128]
    return sum(longest >= end for end in prefixes), sum(requests >= end for end in batches)


@pytest.mark.parametrize("requests", [1, 2, 3, 4, 7, 8, 127, 128, 1000])
def test_batch_cells(library: Library, requests: int) -> None:
    harness = Harness(library)
    call, ours = outputs(make_call(Case((2,) * requests, (1,) * requests, 1)))
    assert harness.compare(call, ours) == abi.Status.OK
    assert list(harness.cells()) == [expected_cell(2, requests)]


@pytest.mark.parametrize("longest", [0, 1023, 1024, 2047, 2048, 65535, 65536, 131071, 131072, 400_000])
def test_prefix_cells(library: Library, longest: int) -> None:
    """By the longest of the call; compare reads no entry of a long prefix, so that none is needed here."""
    harness = Harness(library)
    call, ours = outputs(make_call(Case((2, 0), (1, 2), 2)))
    call = call._replace(
        kv_indptr=torch.tensor([0, 2, 2 + longest]), kv_indices=torch.ones(2 + longest, dtype=torch.int32)
    )
    assert harness.compare(call, ours) == abi.Status.OK
    assert list(harness.cells()) == [expected_cell(max(2, longest), 2)]


def test_padding_is_no_request_and_its_prefix_is_none(library: Library) -> None:
    harness = Harness(library)
    call, ours = outputs(make_call(Case((5, 1, 1, 9000), (3, 3, 3, 0), 2)))
    call.kv_indices[5:7] = 0
    assert harness.compare(call, ours) == abi.Status.OK
    assert list(harness.cells()) == [(0, 0)]


def test_what_a_cell_adds_up(library: Library) -> None:
    harness = Harness(library)
    stamps = (ctypes.c_uint64 * 3)()
    relative = []
    for noise, times in ((0.01, (5, 8, 10)), (0.5, (2**40, 2**40, 2**40 + 7)), (0.02, (9, 8, 10)), (0.02, (7, 9, 8))):
        stamps[:] = times
        call, ours = outputs(make_call(Case((5, 9), (2, 4), 3)), noise)
        address = ctypes.addressof(stamps)
        assert harness.compare(call, ours, rel_l2_bound=0.1, stamps=address) == abi.Status.OK
        relative.append(harness.record.last_rel_l2)
    ours[0, 0, :2] = math.nan
    assert harness.compare(call, ours, rel_l2_bound=0.1) == abi.Status.OK  # not timed
    relative.append(harness.record.last_rel_l2)

    ((place, record),) = harness.cells().items()
    assert place == (0, 1)
    assert fields(record) == {
        "calls": 5,
        "exceeded_calls": 2,
        "nonfinite": 2,
        "worst_rel_l2": max(relative),
        "sum_rel_l2": sum(relative),
        "timed_calls": 2,  # stamps out of order are none
        "stock_ns": 3,
        "kernel_ns": 9,
    }
    assert fields(harness.cells(1)[place]) == fields(record)


def test_without_a_table_or_a_mirror(library: Library) -> None:
    harness = Harness(library)
    call, ours = outputs(make_call(Case((5,), (2,), 3)))
    assert harness.compare(call, ours, shapes=None) == abi.Status.OK
    assert not harness.shapes.any()
    assert harness.compare(call, ours, shapes_mirror=None) == abi.Status.OK
    assert (len(harness.cells()), len(harness.cells(1))) == (1, 0)
    assert harness.record.compare_calls == 2


def test_a_stamp_is_a_time_in_nanoseconds(library: Library) -> None:
    slots = (ctypes.c_uint64 * 2)()
    first, second = (ctypes.addressof(slots) + 8 * i for i in range(2))
    assert library.stamp(first, -1, None) == abi.Status.OK
    time.sleep(0.01)
    assert library.stamp(second, -1, None) == abi.Status.OK
    assert 0.01e9 <= slots[1] - slots[0] < 10e9


def test_stamps_refuse(library: Library) -> None:
    slot = ctypes.c_uint64()
    address = ctypes.addressof(slot)
    assert library.functions.kdtree_stamp(None, -1, None) == abi.Status.ERR_NULL_POINTER
    assert library.stamp(address + 4, -1, None) == abi.Status.ERR_ALIGNMENT
    assert library.stamp(address, 0, None) == abi.Status.ERR_DEVICE
    assert library.stamp(address, -1, 1) == abi.Status.ERR_DEVICE
    assert slot.value == 0
