"""Runs cells: inputs, then each contender checked against float64, then timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch

from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call

from .cells import Cell
from .contenders import Contender, Prepared
from .inputs import Inputs
from .oracle import Check, check
from .timing import MOST_CALLS, Launch, Time

TOO_SLOW = 20
"""A peer that takes this many times our time is timed once."""

SPARE_BYTES = 5 << 30
"""What the float64 check of the largest cell takes beside the inputs, with some room."""

Row = dict[str, Any]


class Timer(Protocol):
    def once(self, launch: Launch) -> Time: ...
    def median(self, launches: Sequence[Launch], refill: Callable[[], None] | None = None) -> Time: ...


@dataclass(frozen=True)
class Bench:
    """How cells are run.

    Args:
        inputs: Makes the calls.
        timer: Times launches.
        rotation_bytes: Calls of a cell take turns among inputs whose pool rows exceed this together.
        memory: Bytes that a cell may use.
    """

    inputs: Inputs
    timer: Timer
    rotation_bytes: int
    memory: int

    def run(self, cell: Cell, contenders: Sequence[Contender]) -> Row:
        """The cell's row: shape, and per contender its time and error, or why it has none.

        The first contender is ours. Where its output is wrong nothing is timed.
        """
        row: Row = {"key": cell.key, **asdict(cell), "times": {}}
        needed = memory_needed(cell, 1)
        if needed > self.memory:
            row["skipped"] = f"needs {needed / 2**30:.1f} GiB of {self.memory / 2**30:.1f}"
            return row
        calls = self.inputs.calls(cell, rotations(cell, self.rotation_bytes))
        ours: float | None = None
        for contender in contenders:
            entry = self._contend(cell, calls, contender, ours)
            row["times"][contender.name] = entry
            if contender is contenders[0]:
                if entry["status"] != "timed":
                    break
                ours = entry["us"]
        return row

    def run_refilled(self, captured: Cell, replayed: Cell, ours: Contender) -> Row:
        """A graph captured for one length and replayed for a shorter one: only the lengths are written anew."""
        calls = self.inputs.calls(captured, rotations(captured, self.rotation_bytes))
        prepared = ours.prepare(captured, calls)

        def refill() -> None:
            for call in calls:
                call.kv_indptr.copy_(torch.tensor([0, *accumulate(replayed.lengths)]))

        taken = self.timer.median(prepared.launches, refill)
        wrong = check(calls[0], replayed.lengths, prepared.outputs[0]).verdict(ours.bound(replayed))
        status = {"status": "wrong", "reason": wrong} if wrong else {"status": "timed", **asdict(taken)}
        return {"key": replayed.key, **asdict(replayed), "captured": captured.key, "times": {ours.name: status}}

    def _contend(self, cell: Cell, calls: list[Call], contender: Contender, ours: float | None) -> dict[str, Any]:
        try:
            prepared = contender.prepare(cell, calls)
            found = _first_result(cell, calls[0], contender, prepared)
            wrong = found.verdict(contender.bound(cell))
            if wrong:
                return {"status": "wrong", "reason": wrong}
            first = prepared.outputs[0].clone()
            taken = self._time(prepared.launches, ours)
            if ours is None and not torch.equal(first, prepared.outputs[0]):
                return {"status": "wrong", "reason": "not the first launch's result after the timed ones"}
        except Exception as error:
            # A peer may refuse a shape or not fit the card, with exceptions of its own; of ours, failing is the news.
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}
        errors = {"error": _short(found.relative), "worst_row": _short(found.worst_row)}
        return {"status": "timed", **asdict(taken), "us": round(taken.us, 2), **errors}

    def _time(self, launches: list[Launch], ours: float | None) -> Time:
        if ours is not None:
            single = self.timer.once(launches[-1])
            if single.us > TOO_SLOW * ours:
                return single
        return self.timer.median(launches)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _first_result(cell: Cell, call: Call, contender: Contender, prepared: Prepared) -> Check:
    prepared.launches[0]()
    return check(call, cell.lengths, prepared.outputs[0], contender.chain)


def rotations(cell: Cell, rotation_bytes: int) -> int:
    """How many inputs calls of the cell take turns among."""
    return min(MOST_CALLS, -(-rotation_bytes // call_bytes(cell)))


def slots(cells: Iterable[Cell], rotation_bytes: int) -> int:
    """The most pool rows that one of the cells uses."""
    return max(rotations(cell, rotation_bytes) * sum(cell.lengths) for cell in cells)


def call_bytes(cell: Cell) -> int:
    """Bytes of a call that its kernels read or write: pool rows, queries, outputs, draft rows."""
    tokens = len(cell.lengths) * cell.drafts
    return cell.pool_bytes + 2 * tokens * (cell.heads + 1) * (QK_DIM + V_DIM)


def memory_needed(cell: Cell, count: int) -> int:
    """Bytes that `count` calls of the cell take, about: pool, mask, indices and their sort, float64 check."""
    used = sum(cell.lengths)
    mask = sum(cell.drafts * (length + cell.drafts) for length in cell.lengths)
    return count * (call_bytes(cell) + mask + 24 * used) + SPARE_BYTES


class Deadline:
    """A point in time, `seconds` after this is made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    def passed(self) -> bool:
        return self._clock() >= self._end


def memory_to_use(device: torch.device) -> int:
    """Bytes of the card that are free, less a tenth."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * 0.9)
