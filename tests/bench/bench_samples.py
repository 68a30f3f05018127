"""What the benchmark's tests run and read on a CPU: the host library, a timer that makes its times up, results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "patch" / "src"), str(ROOT / "tests" / "kernel")]

from bench.cells import Ceilings, Cell  # noqa: E402
from bench.contenders import Kdtree, Prepared  # noqa: E402
from bench.timing import Time  # noqa: E402

CPU = torch.device("cpu")
TINY = Cell(2, 3, 4, 33)


class MadeUpTimer:
    """Launches everything once and says `us` of it; a launch may have a `us` of its own."""

    def __init__(self, us: float = 10.0) -> None:
        self.us = us
        self.taken: list[str] = []

    def once(self, launch: Any) -> Time:
        return self._time([launch], "once")

    def median(self, launches: Sequence[Any], refill: Callable[[], None] | None = None) -> Time:
        if refill:
            refill()
        return self._time(launches, "graph")

    def _time(self, launches: Sequence[Any], how: str) -> Time:
        for launch in launches:
            launch()
        self.taken.append(how)
        return Time(getattr(launches[0], "us", self.us), how, len(launches), 1)


class Other:
    """A peer made of ours: it says how long it takes, and `spoil` changes its output."""

    chain = False

    def __init__(self, ours: Kdtree, name: str, us: float, spoil: Callable[[torch.Tensor], object] | None = None):
        self.ours, self.name, self.us, self.spoil = ours, name, us, spoil

    def bound(self, cell: Cell) -> float:
        return 1e-2

    def prepare(self, cell: Cell, calls: Sequence[Any]) -> Prepared:
        copies = [call._replace(o_extend=call.o_extend.clone()) for call in calls]
        prepared = self.ours.prepare(cell, copies)
        return Prepared(
            [self._launch(launch, out) for launch, out in zip(prepared.launches, prepared.outputs, strict=True)],
            prepared.outputs,
        )

    def _launch(self, launch: Callable[[], object], out: torch.Tensor) -> Any:
        def spoiled() -> None:
            launch()
            if self.spoil:
                self.spoil(out)

        spoiled.us = self.us  # type: ignore[attr-defined]
        return spoiled


def a_row(cell: Cell, **times: float | dict[str, Any]) -> dict[str, Any]:
    """A row of results: `name=us` or `name={...}`."""
    entries = {
        name: taken
        if isinstance(taken, dict)
        else {"status": "timed", "us": taken, "how": "graph", "error": 2e-3, "worst_row": 3e-3}
        for name, taken in times.items()
    }
    return {"key": cell.key, **asdict(cell), "times": entries}


def a_run(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A section of results of an H200."""
    return {
        "date": "2026-11-30T00:00:00+00:00",
        "commit": "0" * 40,
        "hardware": {"name": "NVIDIA H200", "multiprocessors": 132, "compute_capability": "9.0"},
        "versions": {"driver": "580", "torch": "2.11.0", "sglang": "0.5.23"},
        "library": {"source_hash": "ab" * 32},
        "ceilings": {"copy": 4.242e6, "mma": 647e6, "mma_mhz": 1755.0},
        "clocks": {},
        "own_stock": "stock_sm90",
        "missing_peers": {},
        "rows": rows,
        **more,
    }


H200 = Ceilings(copy=4.242e6, mma=647e6)
