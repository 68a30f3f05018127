"""An estimate of the kernel's time on a card that it has not run on, from what a step of it takes.

Every number that this makes is an estimate. A call's steps are spread over the multiprocessors as the kernel shares
them out; a step takes as long as its matrix instructions or its shared-memory traffic, whichever is longer; the whole
takes no less than the pool's bytes at the card's copy rate. What overlaps badly is one efficiency, fitted to a measured
run, as is the fixed cost of a call: two launches, the plan, a tile's queries (81,920 bytes into shared memory), its
part (67,072 bytes to the L2) and the merge. A multiprocessor that walks more than one tile pays for the latter again,
which is not counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cells import Cell

# ---- What a step of the kernel takes (kernel/cuda/; docs/kernel.md has the same table) -----------------------------

STEP_ROWS, STEP_KEYS = 64, 32
WARPS = 8
"""Warps that multiply: two groups of four."""
MMAS_A_WARP = 136
"""mma.sync.m16n8k16 of a warp and step: 72 of S, 64 of O."""
MMA_FLOPS = 2 * 16 * 8 * 16
STEP_FLOPS = WARPS * MMAS_A_WARP * MMA_FLOPS
SMEM_BYTES = {
    "K fragments": 73_728,
    "V fragments": 65_536,
    "partial S written": 24_576,
    "partial S read": 24_576,
    "P written": 4_096,
    "P read": 16_384,
    "filling the stage": 36_864,
}
WIDENING_BYTES = 36_864
"""More of them with an fp8 pool: rows come as 18,432 bytes, are read again and written as 36,864."""
SMEM_BYTES_A_CLOCK = 128
"""Of a multiprocessor, on sm_90 and on sm_120."""
ALIGNMENT_COST = 2
TILE_COST = 4
"""kAlignmentCost and kTileCost of kernel/cuda/plan.cuh."""

# ---- Cards ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """Rates of a card.

    Attributes:
        multiprocessors: Their number.
        mma: bf16 operations with float32 sums per microsecond.
        copy: Bytes per microsecond to and from memory.
        mhz: SM clock.
    """

    name: str
    multiprocessors: int
    mma: float
    copy: float
    mhz: float


COPY_SHARE = 0.84
"""Of the published memory rate, what a copy reaches: 4036 to 4068 of 4800 GB/s on an H200
(docs/benchmark/h200.json)."""

PUBLISHED = (
    Card("RTX PRO 6000", multiprocessors=188, mma=503.8e6, copy=1792e3 * COPY_SHARE, mhz=2617),
    Card("RTX 5090", multiprocessors=170, mma=209.5e6, copy=1792e3 * COPY_SHARE, mhz=2407),
)
"""Published rates, both second-hand; not measured."""


@dataclass(frozen=True)
class Fit:
    """What a measured run adds to the counts.

    Attributes:
        fixed_us: A call with no prefix.
        efficiency: The step's rate as a share of the rate that its busiest resource allows.
        source: The card and date of the run.
    """

    fixed_us: float
    efficiency: float
    source: str


def steps(cell: Cell) -> int:
    """Steps of all multiprocessors together: row tiles times key blocks, the draft tokens' block among them."""
    return _tiles(cell) * sum(_blocks(cell))


def share(cell: Cell, multiprocessors: int) -> int:
    """Steps of the busiest multiprocessor: the least share from the even one on, and up to ALIGNMENT_COST above it, of
    which every tile begins one; else the even share, TILE_COST for each tile among it (kernel/cuda/plan.cuh)."""
    tiles = _tiles(cell) * len(cell.lengths)
    units = steps(cell) + TILE_COST * tiles
    even = max(math.ceil(units / multiprocessors), 1)
    least = max(math.ceil(steps(cell) / multiprocessors), units // multiprocessors, 1)
    for aligned in range(least, even + ALIGNMENT_COST + 1):
        if sum(_tiles(cell) * math.ceil(blocks / aligned) for blocks in _blocks(cell)) <= multiprocessors:
            return aligned
    return even


def _tiles(cell: Cell) -> int:
    return math.ceil(cell.rows / STEP_ROWS)


def _blocks(cell: Cell) -> list[int]:
    """Of each request: its prefix's, then its draft tokens'."""
    return [math.ceil(n / STEP_KEYS) + math.ceil(cell.drafts / STEP_KEYS) for n in cell.lengths]


def terms_us(cell: Cell, card: Card) -> dict[str, float]:
    """Microseconds that each resource is busy, were it alone."""
    per_multiprocessor = share(cell, card.multiprocessors)
    smem = sum(SMEM_BYTES.values()) + (WIDENING_BYTES if cell.pool != "bf16" else 0)
    return {
        "mma": per_multiprocessor * STEP_FLOPS * card.multiprocessors / card.mma,
        "shared memory": per_multiprocessor * smem / (SMEM_BYTES_A_CLOCK * card.mhz),
        "memory": cell.pool_bytes / card.copy,
    }


def estimate_us(cell: Cell, card: Card, fit: Fit) -> float:
    """Microseconds of a call, estimated."""
    return fit.fixed_us + max(_limits_us(cell, card, fit).values())


def bound_by(cell: Cell, card: Card, fit: Fit) -> str:
    """The resource that the estimate waits for."""
    limits = _limits_us(cell, card, fit)
    return max(limits, key=limits.__getitem__)


def _limits_us(cell: Cell, card: Card, fit: Fit) -> dict[str, float]:
    # The efficiency is that of a step; memory is read ahead of it.
    share = {"mma": fit.efficiency, "shared memory": fit.efficiency, "memory": 1.0}
    return {name: busy / share[name] for name, busy in terms_us(cell, card).items()}


def measured_card(run: dict[str, Any]) -> Card:
    """The card of a run, with the rates that the run measured."""
    hardware, ceilings = run["hardware"], run["ceilings"]
    return Card(hardware["name"], hardware["multiprocessors"], ceilings["mma"], ceilings["copy"], ceilings["mma_mhz"])


def fit(run: dict[str, Any]) -> Fit | None:
    """Fixed cost and efficiency from a table's run; None where it has too little.

    Rows that the fixed cost dominates say nothing of the rest and are left out.
    """
    empty = [us for row in run.get("small", []) if row["prefix"] == 0 and (us := _ours(row))]
    if not empty:
        return None
    card = measured_card(run)
    shares = []
    for row in run["rows"]:
        us = _ours(row)
        if us and us > 3 * empty[0]:
            terms = terms_us(cell_of(row), card)
            shares.append(max(terms["mma"], terms["shared memory"]) / (us - empty[0]))
    if not shares:
        return None
    return Fit(empty[0], statistics.geometric_mean(shares), f"{card.name}, {run['date'][:10]}")


def cell_of(row: dict[str, Any]) -> Cell:
    """The cell of a row of results."""
    return Cell(**{name: row[name] for name in ("batch", "heads", "drafts", "prefix", "pool", "short")})


def table(rows: Sequence[dict[str, Any]], here: Card, found: Fit) -> list[dict[str, Any]]:
    """Per row: measured here, the model here, and the estimate for each published card with what bounds it."""
    lines = []
    for row in rows:
        cell = cell_of(row)
        lines.append(
            {
                "key": cell.key,
                "measured_us": _ours(row),
                "modelled_us": estimate_us(cell, here, found),
                "estimates": {
                    card.name: {"us": estimate_us(cell, card, found), "bound_by": bound_by(cell, card, found)}
                    for card in PUBLISHED
                },
            }
        )
    return lines


def _ours(row: dict[str, Any]) -> float | None:
    entry = row["times"].get("kdtree", {})
    return entry["us"] if entry.get("status") == "timed" else None
