"""Plots of a file of results."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plot, svg
from bench.cells import SMALL, TABLE, grid
from bench.results import Results
from bench_samples import a_row, a_run
from kdtree_verify.errors import UsageError

PEERS = {"stock_sm90": 700.0, "stock_sm120": 800.0, "flashinfer_fa2": 20.0, "flashinfer_fa3": 9.0}


def a_file(path: Path) -> Path:
    results = Results(path)
    small = [a_row(cell, kdtree=12.0, stock_sm90=90.0) for cell in SMALL]
    results.begin("table", a_run([a_row(cell, kdtree=14.0, **PEERS) for cell in TABLE], small=small))
    rows = [a_row(cell, kdtree=14.0, stock_sm90=90.0) for cell in grid()[:50]]
    results.begin("grid", a_run(rows, grid_cells=864))
    results.save()
    return path


def test_all_four_are_drawn_and_well_formed(tmp_path: Path) -> None:
    drawn = plot.draw(a_file(tmp_path / "h200.json"), tmp_path / "plots")
    assert [path.stem for path in drawn] == ["h200-time", "h200-speedup", "h200-floor", "h200-grid"]
    for path in drawn:
        text = " ".join(ElementTree.parse(path).getroot().itertext())
        assert "NVIDIA H200, 2026-11-30" in text
    assert "SGLang 32x32" in drawn[0].read_text()


def test_a_peer_without_a_time_is_left_out(tmp_path: Path) -> None:
    rows = [a_row(cell, kdtree=14.0, flashinfer_fa2={"status": "failed", "reason": "no"}) for cell in TABLE]
    results = Results(tmp_path / "x.json")
    results.begin("table", a_run(rows))
    results.save()
    for path in plot.draw(tmp_path / "x.json", tmp_path):
        assert ">fa2" not in path.read_text()


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file of results"):
        plot.draw(tmp_path / "none.json", tmp_path)
    empty = Results(tmp_path / "empty.json")
    empty.save()
    with pytest.raises(UsageError, match="nothing to draw"):
        plot.draw(tmp_path / "empty.json", tmp_path)


def test_a_logarithmic_axis_holds_its_values() -> None:
    assert svg.decades([3.0, 250.0]) == [1.0, 10.0, 100.0, 1000.0]
    axis = svg.Axis("us", [1.0, 10.0, 100.0], log=True)
    assert (axis.share(1.0), axis.share(10.0), axis.share(100.0)) == pytest.approx((0.0, 0.5, 1.0))
