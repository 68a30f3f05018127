"""The proof's float32 attention, against the float64 reference of the kernel's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proof import exact

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))

import cases
import reference

CASES = (
    cases.Case((70, 0, 3), (8, 8, 8), 3),
    cases.Case((33, 5), (6, 6), 2, mask="chain"),
    cases.Case((64,), (4,), 8, indptr_dtype=cases.torch.int64, strided=True, gap=0),
)


@pytest.mark.parametrize("pool", cases.POOLS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_attention(case: cases.Case, pool: str) -> None:
    call = cases.make_call(cases.with_pool(case, pool))
    got = exact.attention(call)
    assert reference.relative_error(got, reference.attention(call)) < 2e-6


def test_a_draft_that_is_not_seen_does_not_count() -> None:
    call = cases.make_call(CASES[0])
    mask = call.custom_mask.clone()
    seen_by_second = 78 + 70  # its row is the second of 70 + 8 bytes
    assert mask[seen_by_second]
    mask[seen_by_second] = 0
    other = call._replace(custom_mask=mask)
    assert reference.relative_error(exact.attention(other), reference.attention(other)) < 2e-6
    assert not exact.attention(other)[1].equal(exact.attention(call)[1])
