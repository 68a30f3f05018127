"""kdtree_compare: exact figures, what it leaves out, and what a broken kernel looks like in the record."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cases import Case, make_call
from harness import Harness, fields
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library

BF16, F32 = torch.bfloat16, torch.float32
NAN, INF = float("nan"), float("inf")


def _outputs(case: Case, seed: int = 0, noise: float = 0.01) -> tuple[Call, torch.Tensor]:
    """A call whose o_extend is a random stock output, and ours beside it."""
    call = make_call(case, seed)
    generator = torch.Generator().manual_seed(seed)
    call.o_extend.copy_(torch.randn(call.o_extend.shape, generator=generator))
    ours = call.o_extend.float() + noise * torch.randn(call.o_extend.shape, generator=generator)
    return call, ours.to(case.out_dtype)


def _expected(call: Call, ours: torch.Tensor, rows: list[int]) -> dict[str, Any]:
    stock, ours = call.o_extend[rows].double(), ours[rows].double()
    both = stock.isfinite() & ours.isfinite()
    diff = (ours - stock)[both]
    sq_diff, sq_stock = diff.square().sum().item(), stock[both].square().sum().item()
    return {
        "compare_calls": 1,
        "compare_rows": len(rows),
        "nonfinite": (stock.isfinite() & ~ours.isfinite()).sum().item(),
        "max_abs": diff.abs().max().item() if len(diff) else 0.0,
        "sum_sq_diff": pytest.approx(sq_diff, rel=1e-12),
        "sum_sq_stock": pytest.approx(sq_stock, rel=1e-12),
        "worst_rel_l2": pytest.approx(math.sqrt(sq_diff / sq_stock) if sq_diff else 0.0, rel=1e-12),
    }


def _assert_record(harness: Harness, expected: dict[str, Any]) -> None:
    got = fields(harness.record)
    assert {name: got[name] for name in expected} == expected
    assert fields(harness.mirror) == got


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("strided", [False, True])
def test_figures(library: Library, dtype: torch.dtype, strided: bool) -> None:
    call, ours = _outputs(Case((5, 2), (7, 9), 3, out_dtype=dtype, strided=strided))
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    expected = _expected(call, ours, list(range(16)))
    _assert_record(harness, expected)
    assert harness.record.last_rel_l2 == harness.record.worst_rel_l2
    assert harness.record.last_max_abs == harness.record.max_abs
    assert harness.record.kernel_calls == harness.record.exceeded_calls == 0


def test_stock_bf16_against_ours_f32(library: Library) -> None:
    call, ours = _outputs(Case((5,), (7,), 3))
    ours = ours.float() + 1e-4
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_record(harness, _expected(call, ours, list(range(7))))


def test_rows_without_a_request_are_left_out(library: Library) -> None:
    call, ours = _outputs(Case((5, 9, 2), (7, 0, 4), 2, gap=3))
    ours[:3], ours[-3:] = 1e3, NAN
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_record(harness, _expected(call, ours, list(range(3, 14))))


@pytest.mark.parametrize(("length", "slot", "left_out"), [(1, 0, True), (1, 1, False), (2, 0, False), (0, 0, False)])
def test_padded_requests_are_left_out(library: Library, length: int, slot: int, left_out: bool) -> None:
    """Graph padding: a prefix of length 1, on slot 0. Neither alone is padding."""
    call, ours = _outputs(Case((4, length), (3, 3), 2))
    call.kv_indices[4 : 4 + length] = slot
    ours[3:] = NAN
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_record(harness, _expected(call, ours, list(range(3 if left_out else 6))))
    assert harness.record.exceeded_calls == (0 if left_out else 1)


def test_a_call_with_nothing_to_compare_is_not_counted(library: Library) -> None:
    """Graph padding alone, and what a closed gate leaves; what it finds out of range is told all the same."""
    call, ours = _outputs(Case((1,), (3,), 2))
    call.kv_indices[0] = 0
    harness = Harness(library)
    assert harness.compare(call, ours, rel_l2_bound=0.0) == abi.Status.OK
    closed = call._replace(qo_indptr=torch.zeros_like(call.qo_indptr), kv_indptr=torch.zeros_like(call.kv_indptr))
    assert harness.compare(closed, ours, rel_l2_bound=0.0) == abi.Status.OK
    assert not any(fields(harness.record).values())
    assert not harness.shapes.any()
    call.qo_indptr[0] = -1
    assert harness.compare(call, ours, rel_l2_bound=0.0) == abi.Status.OK
    got = fields(harness.record)
    assert got.pop("out_of_range") == 1
    assert not any(got.values())


def test_nonfinite_of_ours_counts_and_of_stock_does_not(library: Library) -> None:
    call, ours = _outputs(Case((5,), (6,), 2))
    call.o_extend[0, 0, :3] = torch.tensor([NAN, INF, -INF])  # stock's alone: left out
    call.o_extend[1, 1, :2] = torch.tensor([NAN, INF])
    ours[1, 1, :2] = torch.tensor([NAN, INF])  # both: left out
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    assert (harness.record.nonfinite, harness.record.exceeded_calls) == (0, 0)
    ours[2, 0, :3] = torch.tensor([NAN, INF, -INF])  # ours alone
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    expected = _expected(call, ours, list(range(6)))
    assert expected["nonfinite"] == 3
    _assert_record(harness, {**expected, "exceeded_calls": 1})


@pytest.mark.parametrize(
    ("rel_l2_bound", "max_abs_bound", "exceeded"),
    [
        (lambda r, m: r, lambda r, m: 0.0, 0),  # the bound itself is allowed; 0 checks nothing
        (lambda r, m: math.nextafter(r, 0), lambda r, m: -1.0, 1),
        (lambda r, m: 1.0, lambda r, m: m, 0),
        (lambda r, m: 1.0, lambda r, m: math.nextafter(m, 0), 1),
        (lambda r, m: 0.0, lambda r, m: 1e-9, 1),  # both broken: one call
    ],
)
def test_bounds(library: Library, rel_l2_bound, max_abs_bound, exceeded: int) -> None:
    call, ours = _outputs(Case((5,), (6,), 2))
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    found = harness.record.last_rel_l2, harness.record.last_max_abs
    harness = Harness(library)
    status = harness.compare(call, ours, rel_l2_bound=rel_l2_bound(*found), max_abs_bound=max_abs_bound(*found))
    assert status == abi.Status.OK
    assert harness.record.exceeded_calls == exceeded


def test_stock_all_zeros(library: Library) -> None:
    call, ours = _outputs(Case((5,), (6,), 2))
    call.o_extend.zero_()
    harness = Harness(library)
    assert harness.compare(call, torch.zeros_like(ours)) == abi.Status.OK
    assert (harness.record.last_rel_l2, harness.record.exceeded_calls) == (0.0, 0)
    assert harness.compare(call, ours, rel_l2_bound=1e300) == abi.Status.OK
    assert (harness.record.last_rel_l2, harness.record.exceeded_calls) == (INF, 1)


def test_records_add_up(library: Library) -> None:
    """Three comparisons and two kernel calls into one record: sums add, maxima stay, last is last."""
    case = Case((5, 3), (4, 4), 2)
    harness, sums, rel, largest = Harness(library), [0.0, 0.0], [], []
    for seed, noise in ((0, 0.01), (1, 0.1), (2, 0.001)):
        call, ours = _outputs(case, seed, noise)
        assert harness.compare(call, ours, rel_l2_bound=0.05) == abi.Status.OK
        diff, stock = (ours.double() - call.o_extend.double()), call.o_extend.double()
        sums[0] += diff.square().sum().item()
        sums[1] += stock.square().sum().item()
        rel.append((diff.norm() / stock.norm()).item())
        largest.append(diff.abs().max().item())
        if seed < 2:
            assert harness.verify(make_call(case, seed)) == abi.Status.OK
    approx = {"rel": 1e-12}
    _assert_record(
        harness,
        {
            "kernel_calls": 2,
            "kernel_rows": 16,
            "out_of_range": 0,
            "compare_calls": 3,
            "compare_rows": 24,
            "nonfinite": 0,
            "exceeded_calls": 1,
            "max_abs": largest[1],
            "sum_sq_diff": pytest.approx(sums[0], **approx),
            "sum_sq_stock": pytest.approx(sums[1], **approx),
            "worst_rel_l2": pytest.approx(rel[1], **approx),
            "last_rel_l2": pytest.approx(rel[2], **approx),
            "last_max_abs": largest[2],
        },
    )


def test_bad_windows_are_clamped_and_counted(library: Library) -> None:
    call, ours = _outputs(Case((5, 3), (4, 4), 2))
    call.qo_indptr[:] = torch.tensor([-2, 5, 400])  # rows 0..4 and 5..7
    call.kv_indptr[:] = torch.tensor([-7, 3, 2**30])
    harness = Harness(library)
    assert harness.compare(call, ours) == abi.Status.OK
    _assert_record(harness, {**_expected(call, ours, list(range(8))), "out_of_range": 4})


# What a wrong kernel would read, each made by a wrong argument of one that reads rightly.
BREAKS: dict[str, dict[str, Any]] = {
    "head stride": {"q_stride_head": 607},
    "draft row stride": {"k_stride_token": 576},
    "slot stride": {"pool_stride_slot": 606},
    "output head stride": {"out_stride_head": 543},
    "no mask": {"mask": None, "mask_len": 0},
    "scale": {"sm_scale": 0.1},
    "pool descale": {"k_scale": 0.5},
    "indices of another width": {"kv_indices_dtype": abi.DType.I32},
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_kernel_shows(library: Library, name: str) -> None:
    """Sound, ours equals stock's; broken, the record leaves its bound."""

    def spread(rows: torch.Tensor) -> torch.Tensor:  # room for what a wrong stride reads
        return torch.nn.functional.pad(rows, (0, 32))[..., : rows.shape[-1]]

    call = make_call(Case((40, 30), (16, 16), 4))
    call.k_buffer.nan_to_num_(0.5)
    call = call._replace(q_extend=spread(call.q_extend), k_extend=spread(call.k_extend), k_buffer=spread(call.k_buffer))
    ours = spread(torch.zeros_like(call.o_extend))
    harness = Harness(library)
    assert harness.verify(call) == abi.Status.OK  # in stock's place
    assert harness.verify(call, ours) == abi.Status.OK
    assert harness.compare(call, ours, rel_l2_bound=1e-2) == abi.Status.OK
    assert (harness.record.exceeded_calls, harness.record.last_rel_l2) == (0, 0.0)

    assert harness.verify(call, ours, **BREAKS[name]) == abi.Status.OK
    assert harness.compare(call, ours, rel_l2_bound=1e-2) == abi.Status.OK
    assert harness.record.exceeded_calls == 1
    assert harness.record.last_rel_l2 > 1e-2
