"""Whole runs on the host library, with tables of tiny cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import cells, modes, plot, report, sections
from bench.cells import Cell
from bench.contenders import Kdtree
from bench.results import Results
from bench.runner import Bench, Deadline
from bench_samples import CPU, H200, MadeUpTimer, Other, a_run
from kdtree_verify.native.abi import Status, VerifyArgs
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library

SHAPES = tuple(Cell(1, 2, 4, prefix) for prefix in (32, 64))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Cell(1, 2, 4, 96)
    monkeypatch.setattr(sections, "TABLE", SHAPES)
    monkeypatch.setattr(sections, "SMALL", tuple(replace(long, prefix=prefix) for prefix in (0, 16)))
    monkeypatch.setattr(sections, "LONG", long)
    monkeypatch.setattr(sections, "MIXED", tuple(replace(long, short=short) for short in (0, 1)))
    monkeypatch.setattr(sections, "MODES", SHAPES)
    monkeypatch.setattr(sections, "grid", lambda: [Cell(1, 2, 4, 8 * i) for i in range(5)])


class Steps:
    """A deadline that passes after some looks at it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def passed(self) -> bool:
        self.steps -= 1
        return self.steps < 0


def session(bench: Bench, ours: Any, path: Path, deadline: Any, said: list[str]) -> sections.Session:
    peers = [Other(ours, "stock_sm90", us=50.0), Other(ours, "flashinfer_fa2", us=15.0)]
    return sections.Session(
        bench=bench,
        ours=ours,
        peers={peer.name: peer for peer in peers},
        own_stock="stock_sm90",
        recorded_fit=None,
        results=Results(path),
        deadline=deadline,
        say=said.append,
        line=report.RowLine(H200),
    )


@pytest.mark.usefixtures("tiny")
def test_the_table(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "h200.json"
    run = sections.run_table(session(bench, ours, path, Deadline(600), said), a_run([]))
    assert [row["key"] for row in run["rows"]] == [cell.key for cell in SHAPES]
    assert set(run["rows"][0]["times"]) == {"kdtree", "stock_sm90", "flashinfer_fa2"}
    assert not sections.bad_rows(run)
    assert [verdict["goal"] for verdict in run["verdicts"]] == [2, 3, 4, 6, 7]
    assert any(line.startswith("goal 2: reached") for line in said)
    assert Results(path).sections["table"]["verdicts"] == run["verdicts"]
    assert [drawn.name for drawn in plot.draw(path, tmp_path)] == ["h200-speedup.svg", "h200-floor.svg"]


@pytest.mark.usefixtures("tiny")
def test_a_table_that_runs_out_of_time_says_so(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    said: list[str] = []
    run = sections.run_table(session(bench, ours, tmp_path / "x.json", Steps(1), said), a_run([]))
    assert len(run["rows"]) == 1
    assert any(line.startswith("time is up") for line in said)
    assert Results(tmp_path / "x.json").sections["table"]["rows"] == run["rows"]


@pytest.mark.usefixtures("tiny")
def test_fp8(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    said: list[str] = []
    run = sections.run_fp8(session(bench, ours, tmp_path / "x.json", Deadline(600), said), a_run([]), "e4m3")
    assert {row["pool"] for row in run["rows"]} == {"e4m3"}
    assert [verdict["goal"] for verdict in run["verdicts"]] == [5, 7]
    assert "table-e4m3" in Results(tmp_path / "x.json").sections


@pytest.mark.usefixtures("tiny")
def test_the_grid_in_parts(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    first: list[str] = []
    sections.run_grid(session(bench, ours, path, Steps(2), first), a_run([]))
    assert "grid: 2 of 5 cells, 3 to go: run it again" in first
    assert any(line.startswith("goal 1: open") for line in first)
    second: list[str] = []
    run = sections.run_grid(session(bench, ours, path, Steps(9), second), a_run([]))
    assert "grid: 5 of 5 cells" in second
    assert any(line.startswith("goal 1: reached") for line in second)
    assert len(run["rows"]) == len({row["key"] for row in run["rows"]}) == 5
    assert len(run["parts"]) == 2
    assert [drawn.name for drawn in plot.draw(path, tmp_path)] == ["x-grid.svg"]


@pytest.mark.usefixtures("tiny")
def test_a_slower_cell_is_listed_and_a_wrong_one_counted(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    said: list[str] = []
    slow = replace(bench, timer=MadeUpTimer(us=100.0))
    sections.run_grid(session(slow, ours, tmp_path / "x.json", Deadline(600), said), a_run([]))
    assert sum(line.startswith("slower than SGLang's") for line in said) == 5
    wrong = Other(ours, "kdtree", us=1.0, spoil=lambda out: out.mul_(2))
    run = sections.run_grid(session(bench, wrong, tmp_path / "y.json", Deadline(600), said), a_run([]))
    assert len(sections.bad_rows(run)) == 5


@pytest.mark.usefixtures("tiny")
def test_what_a_mode_costs(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    """On never calls stock; sampling does at each call, with no request where it is not chosen; validate with all."""
    ran: list[int] = []

    def stock(*arguments: Any) -> None:
        call = Call(*arguments)
        ran.append(int(call.qo_indptr[-1]))  # 0 where the gate is shut
        ours.prepare(SHAPES[0], [call]).launches[0]()

    said: list[str] = []
    path = tmp_path / "x.json"
    through = modes.contenders(ours.library, stock, CPU)
    run = sections.run_modes(session(bench, ours, path, Deadline(600), said), a_run([]), through)
    assert Results(path).sections["modes"]["rows"] == run["rows"]
    assert [set(row["times"]) for row in run["rows"]] == [
        {"kdtree", "stock_sm90", "on", "sampled", "validate"} for _ in SHAPES
    ]
    assert not sections.bad_rows(run)
    assert all(taken["status"] == "timed" for row in run["rows"] for taken in row["times"].values()), run["rows"]
    assert 0 in ran, "a call that is not chosen reaches stock with no request"
    assert SHAPES[0].drafts in ran
    ran.clear()
    (on,) = (one for one in through if one.name == "on")
    bench.run(SHAPES[0], [on])
    assert ran == []


@pytest.mark.usefixtures("tiny")
def test_a_kernel_that_fails_is_not_timed_as_a_mode(bench: Bench, ours: Kdtree, tmp_path: Path) -> None:
    class Refusing(Library):
        def verify(self, args: VerifyArgs) -> int:
            return Status.ERR_LAUNCH

    refusing = Refusing(ours.library.description, ours.library.functions)
    through = modes.contenders(refusing, lambda *arguments: None, CPU)
    run = sections.run_modes(session(bench, ours, tmp_path / "x.json", Deadline(600), []), a_run([]), through)
    for name in ("on", "validate"):
        assert {row["times"][name]["status"] for row in run["rows"]} == {"failed"}


@pytest.fixture(autouse=True)
def table_is_as_it_was() -> Iterator[None]:
    before = cells.TABLE
    yield
    assert cells.TABLE is before
