"""The model's counts, and that a fit gives back what it was fitted to."""

from __future__ import annotations

import pytest

from bench import model
from bench.cells import SMALL, TABLE, Cell
from bench_samples import ROOT, a_row, a_run
from kdtree_verify.native.abi import QK_DIM, V_DIM


def test_steps_are_row_tiles_times_key_blocks() -> None:
    assert model.steps(Cell(1, 8, 16, 64)) == 2 * (2 + 1)
    assert model.steps(Cell(3, 8, 8, 0)) == 3
    assert model.steps(Cell(1, 16, 64, 33)) == 16 * (2 + 2)


@pytest.mark.parametrize(
    ("cell", "steps"),
    [
        (Cell(1, 8, 16, 1 << 10), 1),
        (Cell(1, 8, 16, 128 << 10), 63),  # an even share, in which each of both tiles begins one
        (Cell(1, 16, 32, 32 << 10), 65),  # two more than that
        (Cell(8, 16, 32, 8 << 10), 129),  # even are 127, tiles' cost among them; two more let each begin a share
        (Cell(1, 8, 8, 128 << 10, short=3), 32),
        (Cell(1, 8, 8, 131 * 32), 1),  # as many steps as multiprocessors: the tile's cost does not make it two of each
        (Cell(32, 8, 16, 16), 2),  # whole tiles, though half of the multiprocessors have none
    ],
    ids=lambda x: x.key if isinstance(x, Cell) else None,
)
def test_tiles_begin_a_share_where_it_costs_little(cell: Cell, steps: int) -> None:
    assert model.share(cell, 132) == steps


def test_the_counts_are_those_of_the_kernel() -> None:
    header = (ROOT / "kernel" / "cuda" / "tile.cuh").read_text() + (ROOT / "kernel" / "cuda" / "plan.cuh").read_text()
    for name, value in {
        "kRows": model.STEP_ROWS,
        "kKeys": model.STEP_KEYS,
        "kAlignmentCost": model.ALIGNMENT_COST,
        "kTileCost": model.TILE_COST,
    }.items():
        assert f"constexpr int {name} = {value};" in header
    assert model.STEP_FLOPS == 2 * model.STEP_ROWS * model.STEP_KEYS * (QK_DIM + V_DIM)


def test_widening_an_fp8_pool_takes_shared_memory() -> None:
    (card, _) = model.PUBLISHED
    narrow, wide = (model.terms_us(Cell(1, 8, 16, 4096, pool=pool), card) for pool in ("e4m3", "bf16"))
    assert narrow["shared memory"] == pytest.approx(1.15 * wide["shared memory"])
    assert narrow["memory"] == wide["memory"] / 2


def test_a_step_of_the_h200_takes_what_was_worked_out() -> None:
    card = model.Card("H200", 132, mma=647e6, copy=4.242e6, mhz=1830)
    one = model.terms_us(Cell(1, 8, 8, 32 * 127), card)  # 128 steps and a tile's cost: one each
    assert one["mma"] * card.mhz == pytest.approx(1660, rel=0.02)  # clocks
    assert one["shared memory"] * card.mhz == pytest.approx(1920)


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
