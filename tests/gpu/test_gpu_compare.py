"""kdtree_compare of the CUDA library: its figures, what it leaves out, and what a broken kernel looks like in it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cases import Case, make_call
from harness import Harness, fields
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from oracle import DEVICE, on_gpu

pytestmark = pytest.mark.gpu

NAN, INF = float("nan"), float("inf")


def _outputs(case: Case, seed: int = 0, noise: float = 0.01) -> tuple[Call, torch.Tensor]:
    """A call whose o_extend is a random stock output, and ours beside it."""
    call = on_gpu(make_call(case, seed))
    generator = torch.Generator(DEVICE).manual_seed(seed)
    call.o_extend.copy_(torch.randn(call.o_extend.shape, generator=generator, device=DEVICE))
    ours = call.o_extend.float() + noise * torch.randn(call.o_extend.shape, generator=generator, device=DEVICE)
    return call, ours.bfloat16()


def _assert_figures(harness: Harness, call: Call, ours: torch.Tensor, rows: slice) -> None:
    stock, ours = call.o_extend[rows].double(), ours[rows].double()
    both = stock.isfinite() & ours.isfinite()
    diff = (ours - stock)[both]
    sq_diff, sq_stock = diff.square().sum().item(), stock[both].square().sum().item()
    got = fields(harness.record)
    assert got["compare_calls"] == 1
    assert got["compare_rows"] == stock.shape[0]
    assert got["nonfinite"] == (stock.isfinite() & ~ours.isfinite()).sum().item()
    assert got["max_abs"] == got["last_max_abs"] == diff.abs().max().item()
    assert got["sum_sq_diff"] == pytest.approx(sq_diff, rel=1e-12)
    assert got["sum_sq_stock"] == pytest.approx(sq_stock, rel=1e-12)
    assert got["worst_rel_l2"] == got["last_rel_l2"] == pytest.approx(math.sqrt(sq_diff / sq_stock), rel=1e-12)
    assert fields(harness.mirror) == got


@pytest.mark.parametrize(
    "case",
    [
        Case((5,), (1,), 1),
        Case((5, 2), (7, 9), 3, strided=True),
        Case((9,) * 6, (256, 0, 3, 200, 1, 17), 128),
        Case((2,) * 1024, (2,) * 1024, 8, indptr_dtype=torch.int64),
    ],
    ids=str,
)
def test_figures(harness: Harness, case: Case) -> None:
    call, ours = _outputs(case)
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_figures(harness, call, ours, slice(0, sum(case.drafts)))
    again = Harness(harness.library, DEVICE)
    assert again.compare(call, ours) == abi.Status.OK
    assert bytes(again.record) == bytes(harness.record)  # sums are taken in one order


def test_rows_without_a_request_are_left_out(harness: Harness) -> None:
    call, ours = _outputs(Case((5, 9, 2), (7, 0, 4), 2, gap=3))
    ours[:3], ours[-3:] = 1e3, NAN
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_figures(harness, call, ours, slice(3, 14))


@pytest.mark.parametrize(("length", "slot", "left_out"), [(1, 0, True), (1, 1, False), (2, 0, False), (0, 0, False)])
def test_padded_requests_are_left_out(harness: Harness, length: int, slot: int, left_out: bool) -> None:
    call, ours = _outputs(Case((4, length), (3, 3), 2))
    call.kv_indices[4 : 4 + length] = slot
    ours[3:] = NAN
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_figures(harness, call, ours, slice(0, 3 if left_out else 6))
    assert harness.record.exceeded_calls == (0 if left_out else 1)


def test_nonfinite_of_ours_counts_and_of_stock_does_not(harness: Harness) -> None:
    call, ours = _outputs(Case((5,), (6,), 2))
    call.o_extend[0, 0, :3] = torch.tensor([NAN, INF, -INF])
    call.o_extend[1, 1, :2] = ours[1, 1, :2] = torch.tensor([NAN, INF])
    assert harness.compare(call, ours) == abi.Status.OK
    assert (harness.record.nonfinite, harness.record.exceeded_calls) == (0, 0)
    ours[2, 0, :3] = torch.tensor([NAN, INF, -INF])
    harness = Harness(harness.library, DEVICE)
    assert harness.compare(call, ours) == abi.Status.OK
    assert (harness.record.nonfinite, harness.record.exceeded_calls) == (3, 1)
    _assert_figures(harness, call, ours, slice(0, 6))


def test_bounds_and_totals(harness: Harness) -> None:
    call, ours = _outputs(Case((5,), (6,), 2))
    assert harness.compare(call, ours) == abi.Status.OK
    relative, largest = harness.record.last_rel_l2, harness.record.last_max_abs
    for rel_l2_bound, max_abs_bound, exceeded in [
        (relative, 0.0, 0),  # the bound itself is allowed; 0 checks nothing
        (math.nextafter(relative, 0), -1.0, 1),
        (1.0, largest, 1),
        (1.0, math.nextafter(largest, 0), 2),
        (0.0, 1e-9, 3),  # both broken: one call
    ]:
        assert harness.compare(call, ours, rel_l2_bound=rel_l2_bound, max_abs_bound=max_abs_bound) == abi.Status.OK
        assert harness.record.exceeded_calls == exceeded
    assert (harness.record.compare_calls, harness.record.compare_rows) == (6, 36)
    assert harness.record.last_rel_l2 == harness.record.worst_rel_l2 == relative


# What a wrong kernel would read, each made by a wrong argument of one that reads rightly.
BREAKS: dict[str, dict[str, Any]] = {
    "head stride": {"q_stride_head": 584},
    "draft row stride": {"k_stride_token": 592},
    "slot stride": {"pool_stride_slot": 584},
    "output head stride": {"out_stride_head": 528},
    "no mask": {"mask": None, "mask_len": 0},
    "scale": {"sm_scale": 0.1},
    "pool descale": {"k_scale": 0.5},
    "indices of another width": {"kv_indices_dtype": abi.DType.I32},
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_kernel_shows(harness: Harness, name: str) -> None:
    """Sound, ours equals stock's; broken, the record leaves its bound."""

    def roomy(rows: torch.Tensor) -> torch.Tensor:  # space behind the last row for what a wrong stride reaches
        memory = torch.full((rows.numel() + 65536,), 0.5, dtype=torch.bfloat16, device=DEVICE)
        view = memory[: rows.numel()].view(rows.shape)
        view.copy_(rows)
        return view

    call = on_gpu(make_call(Case((40, 30), (16, 16), 4)))
    call.k_buffer.nan_to_num_(0.5)
    rows = ("q_extend", "k_extend", "v_extend", "k_buffer", "o_extend")
    call = call._replace(**{name: roomy(getattr(call, name)) for name in rows})
    ours = torch.zeros(32, 4, 544, dtype=torch.bfloat16, device=DEVICE)[..., : abi.V_DIM]
    assert harness.verify(call) == abi.Status.OK  # in stock's place
    assert harness.verify(call, ours) == abi.Status.OK
    assert harness.compare(call, ours, rel_l2_bound=1e-2) == abi.Status.OK
    assert (harness.record.exceeded_calls, harness.record.last_rel_l2) == (0, 0.0)

    assert harness.verify(call, ours, **BREAKS[name]) == abi.Status.OK
    assert harness.compare(call, ours, rel_l2_bound=1e-2) == abi.Status.OK
    assert harness.record.exceeded_calls == 1
    assert harness.record.last_rel_l2 > 1e-2


def test_count(library) -> None:
    counters = torch.tensor([2**40, 0], dtype=torch.int64, device=DEVICE)
    stream = torch.cuda.current_stream().cuda_stream
    first, second = counters.data_ptr(), counters.data_ptr() + 8
    assert library.count(first, second, 0, stream) == abi.Status.OK
    assert library.count(first, None, 0, stream) == abi.Status.OK
    assert counters.tolist() == [2**40 + 2, 2**40 + 1]
    assert library.count(None, second, 0, stream) == abi.Status.ERR_NULL_POINTER
    assert library.count(first, second, -1, stream) == abi.Status.ERR_DEVICE
