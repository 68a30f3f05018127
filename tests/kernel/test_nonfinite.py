"""NaN and Inf go where IEEE takes them, in the rows that see them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import reference
from cases import FP8, Case, make_call
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library

NAN, INF = float("nan"), float("inf")
F32 = torch.float32
CASE = Case((30, 12), (20, 10), 3, q_dtype=F32, kv_dtype=F32, pool_dtype=F32, out_dtype=F32, mask="any")
ROPE = 560  # a column that moves scores only


def _prefix(call: Call, column: int, value: float) -> None:
    pool = call.k_buffer
    pool[call.kv_indices[4], 0, column] = NAN if pool.dtype == torch.float8_e4m3fn else value  # it has no Inf


def _draft_key(call: Call, column: int, value: float) -> None:
    call.k_extend[7, 0, column] = value


def _draft_value(call: Call, column: int, value: float) -> None:
    call.v_extend[7, 0, column] = value


def _query(call: Call, column: int, value: float) -> None:
    call.q_extend[3, 1, column] = value


PLACES = [(_prefix, 5), (_prefix, ROPE), (_draft_key, 5), (_draft_key, ROPE), (_draft_value, 5), (_query, ROPE)]


@pytest.mark.parametrize("pool", [F32, *FP8])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(("place", "column"), PLACES)
def test_one_bad_number(
    library: Library, place: Callable[[Call, int, float], None], column: int, value: float, pool: torch.dtype
) -> None:
    call = make_call(replace(CASE, pool_dtype=pool, k_scale=0.5))
    place(call, column, value)
    assert Harness(library).verify(call) == abi.Status.OK
    want = reference.attention(call)
    finite = want.isfinite()
    assert not finite.all()
    assert finite.any()
    torch.testing.assert_close(call.o_extend[~finite], want[~finite].float(), equal_nan=True)
    reference.assert_rounded(call.o_extend[finite], want[finite])


def test_every_score_minus_infinity(library: Library) -> None:
    """It sees keys, so it is not a row of zeros: 0 / 0."""
    call = make_call(CASE)
    call.q_extend[..., ROPE] = 1.0
    call.k_extend[..., ROPE] = -INF
    call.k_buffer[..., ROPE] = -INF
    assert Harness(library).verify(call) == abi.Status.OK
    assert call.o_extend.isnan().all()


@pytest.mark.parametrize("pool", [F32, torch.float8_e5m2])
def test_minus_infinity_before_finite_scores(library: Library, pool: torch.dtype) -> None:
    """Whole tiles of weight 0, then keys that count."""
    call = make_call(replace(CASE, pool_dtype=pool))
    call.q_extend[..., ROPE] = 1.0
    call.k_buffer[..., ROPE] = -INF
    assert Harness(library).verify(call) == abi.Status.OK
    want = reference.attention(call)
    finite = want.isfinite()
    assert finite.any()
    assert torch.equal(call.o_extend.isfinite(), finite)
    reference.assert_rounded(call.o_extend[finite], want[finite])
