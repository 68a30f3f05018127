"""The arithmetic of the goals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.cells import LONG, MIXED, SMALL, TABLE, Cell
from bench.verdict import Verdict, slower_cells, verdicts
from bench_samples import a_row, a_run


def goal(number: int, run: dict[str, Any]) -> Verdict:
    (found,) = [verdict for verdict in verdicts(run) if verdict.goal == number]
    return found


def a_grid(*rows: dict[str, Any], cells: int) -> dict[str, Any]:
    return a_run(list(rows), grid_cells=cells)


def test_1_the_grid_against_stock() -> None:
    fast = a_row(Cell(1, 8, 4, 16), kdtree=10.0, stock_sm90=40.0)
    slow = a_row(Cell(2, 8, 4, 16), kdtree=10.0, stock_sm90=9.0)
    skipped = {**a_row(Cell(4, 8, 4, 16)), "skipped": "needs more"}
    assert goal(1, a_grid(fast, cells=1)).reached is True
    assert goal(1, a_grid(fast, skipped, cells=2)).reached is True
    assert goal(1, a_grid(fast, cells=2)).reached is None
    missed = goal(1, a_grid(fast, slow, cells=2))
    assert missed.reached is False
    assert "1 of 2 cells slower" in missed.detail
    assert "least 0.90x" in missed.detail
    assert slower_cells([fast, slow], "stock_sm90") == [slow]
    assert goal(1, a_grid(a_row(TABLE[0], kdtree=1.0), cells=1)).reached is None


def test_2_fa2_in_geometric_mean_and_every_row() -> None:
    rows = [a_row(cell, kdtree=10.0, flashinfer_fa2=16.0) for cell in TABLE[:4]]
    assert goal(2, a_run(rows)).reached is True
    rows[0]["times"]["flashinfer_fa2"]["us"] = 9.9
    assert goal(2, a_run(rows)).reached is False
    rows[0]["times"]["flashinfer_fa2"] = {"status": "failed", "reason": "no"}
    assert goal(2, a_run(rows)).reached is None


def test_3_only_rows_with_a_floor_of_30_us_count() -> None:
    # Floors: 57 us, and 0.5 us.
    within = [a_row(LONG, kdtree=110.0), a_row(TABLE[0], kdtree=20.0)]
    assert goal(3, a_run(within)).reached is True
    assert goal(3, a_run([a_row(LONG, kdtree=120.0)])).reached is False
    assert goal(3, a_run([a_row(TABLE[0], kdtree=20.0)])).reached is None


def test_4_small_calls() -> None:
    small = [a_row(cell, kdtree=14.0) for cell in SMALL]
    assert goal(4, a_run([a_row(LONG, kdtree=90.0)], small=small)).reached is True
    small[-1]["times"]["kdtree"]["us"] = 15.1
    assert goal(4, a_run([a_row(LONG, kdtree=90.0)], small=small)).reached is False


def test_5_fp8_by_what_bounds_it() -> None:
    multiplying, memory = TABLE[4], TABLE[9]

    def run(first: float, second: float) -> dict[str, Any]:
        rows = [a_row(replace(multiplying, pool="e4m3"), kdtree=first)]
        rows += [a_row(replace(memory, pool="e4m3"), kdtree=second)]
        return a_run(rows, bf16_rows=[a_row(multiplying, kdtree=100.0), a_row(memory, kdtree=28.0)])

    assert goal(5, run(110.0, 20.0)).reached is True
    assert goal(5, run(111.0, 20.0)).reached is False
    assert goal(5, run(110.0, 20.1)).reached is False


def test_6_lengths() -> None:
    refilled = {**a_row(SMALL[-1], kdtree=10.5), "captured": LONG.key}

    def run(with_short: float) -> dict[str, Any]:
        mixed = [a_row(cell, kdtree=100.0 if not cell.short else with_short) for cell in MIXED]
        return a_run([], mixed=mixed, refilled=refilled, small=[a_row(SMALL[-1], kdtree=10.0)])

    assert goal(6, run(109.0)).reached is True
    assert goal(6, run(111.0)).reached is False
    refilled["times"]["kdtree"]["us"] = 12.0
    assert goal(6, run(100.0)).reached is False


def test_7_error_beside_stock() -> None:
    def entry(error: float) -> dict[str, Any]:
        return {"status": "timed", "us": 10.0, "error": error}

    row = a_row(LONG, kdtree=entry(2.2e-3), stock_sm90=entry(2.0e-3))
    assert goal(7, a_run([row])).reached is True
    row = a_row(LONG, kdtree=entry(2.3e-3), stock_sm90=entry(2.0e-3))
    assert goal(7, a_run([row])).reached is False
    assert goal(7, a_run([a_row(LONG, kdtree=entry(2e-3))])).reached is None
