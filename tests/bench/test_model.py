"""The model's counts, and that a fit gives back what it was fitted to."""

from __future__ import annotations

import pytest

from bench import model
from bench.cells import SMALL, TABLE, Cell
from conftest import a_row, a_run


def test_steps_are_row_tiles_times_key_blocks() -> None:
    assert model.steps(Cell(1, 8, 16, 64)) == 2 * (2 + 1)
    assert model.steps(Cell(3, 8, 8, 0)) == 3
    assert model.steps(Cell(1, 16, 64, 33)) == 16 * (2 + 2)


def test_a_step_of_the_h200_takes_what_was_worked_out() -> None:
    card = model.Card("H200", 132, mma=647e6, copy=4.242e6, mhz=1830)
    one = model.terms_us(Cell(1, 8, 8, 32 * 131), card)  # 132 steps: one each
    assert one["mma"] * card.mhz == pytest.approx(1660, rel=0.02)  # clocks
    assert one["shared memory"] * card.mhz == pytest.approx(1915, rel=0.02)


def test_it_fits_what_it_made() -> None:
    run = a_run([])
    card = model.measured_card(run)
    made = model.Fit(fixed_us=9.0, efficiency=0.5, source="made up")
    run["rows"] = [a_row(cell, kdtree=model.estimate_us(cell, card, made)) for cell in TABLE]
    run["small"] = [a_row(SMALL[0], kdtree=9.0)]
    found = model.fit(run)
    assert found is not None
    assert found.efficiency == pytest.approx(0.5)
    line = model.table(run["rows"], card, found)[3]
    assert line["modelled_us"] == pytest.approx(line["measured_us"])


def test_without_a_call_of_no_prefix_there_is_no_fit() -> None:
    assert model.fit(a_run([a_row(TABLE[3], kdtree=100.0)])) is None


def test_a_card_of_fewer_flops_is_bound_by_them() -> None:
    (pro, consumer) = model.PUBLISHED
    cell, fit = TABLE[4], model.Fit(9.0, 0.5, "made up")
    assert model.bound_by(cell, pro, fit) == model.bound_by(cell, consumer, fit) == "mma"
    assert model.bound_by(TABLE[8], pro, fit) == "memory"
    assert model.terms_us(cell, consumer)["mma"] > 2 * model.terms_us(cell, pro)["mma"]
