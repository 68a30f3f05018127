"""What is timed, and the floor under it."""

from __future__ import annotations

import pytest

from bench.cells import MIXED, TABLE, Cell, grid, needed
from bench_samples import H200


def test_the_grid_is_whole_and_in_one_order() -> None:
    cells = grid()
    assert len(cells) == len({cell.key for cell in cells}) == 6 * 3 * 6 * 8
    assert cells == grid()
    # Any first part is a sample: both ends of every axis are soon there.
    first = cells[:100]
    assert {cell.prefix for cell in first} == {cell.prefix for cell in cells}
    assert {cell.batch for cell in first} == {cell.batch for cell in cells}


@pytest.mark.parametrize(
    ("shape", "floor"), [((1, 8, 16, 128 << 10), 57), ((8, 8, 16, 8 << 10), 29), ((32, 8, 8, 4 << 10), 36)]
)
def test_floors_are_those_of_the_recorded_targets(shape: tuple[int, int, int, int], floor: float) -> None:
    assert H200.floor_us(Cell(*shape)) == pytest.approx(floor, rel=0.03)


def test_a_mixed_cell_counts_its_short_requests() -> None:
    alone, *_, seven = MIXED
    assert seven.lengths == (128 << 10, *(16,) * 7)
    assert seven.pool_bytes - alone.pool_bytes == 7 * 16 * 1152


def test_a_run_on_fp8_times_bf16_too() -> None:
    cells = needed("table", "e4m3")
    assert [cell.pool for cell in cells] == ["bf16"] * len(TABLE) + ["e4m3"] * len(TABLE)
    assert cells[-1].pool_bytes * 2 == TABLE[-1].pool_bytes
