"""What `on` would save: an estimate from the times that both kernels took in the same runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..evidence.read import Cell
from .merge import Merged


@dataclass(frozen=True)
class Times:
    """Mean device time of one layer's verify call in a cell, in microseconds, and ms that a decode step would save.

    A step makes one call in each of the target's layers. What else `on` changes (validate's own second computation, the
    launches) is not in it.
    """

    cell: Cell
    stock_us: float
    kernel_us: float
    saved_ms: float


def times(merged: Merged) -> list[Times]:
    """Of each cell in which calls were timed; none of the host library, whose times say nothing about a GPU."""
    if merged.setup.library_kind != "cuda":
        return []
    layers = max(
        (sum(model == "target" for model, _ in rank.layers) for rank in merged.ranks.values()),
        default=0,
    )
    found = []
    for cell in merged.cells:
        if cell.timed_calls:
            stock, kernel = (ns / cell.timed_calls / 1e3 for ns in (cell.stock_ns, cell.kernel_ns))
            found.append(Times(cell, stock, kernel, (stock - kernel) * layers / 1e3))
    return found
