"""What is timed: shapes of verify calls, and the least that each must move and multiply."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from kdtree_verify.native.abi import QK_DIM, V_DIM

POOLS = {"bf16": 2, "e4m3": 1, "e5m2": 1}
"""Bytes of a pool element."""

SHORT_PREFIX = 16


@dataclass(frozen=True)
class Cell:
    """One shape.

    Attributes:
        batch: Requests with a prefix of `prefix` tokens.
        heads: Query heads of the rank.
        drafts: Query tokens of each request.
        prefix: Tokens of each request's prefix.
        pool: Element of the KV pool, a key of POOLS.
        short: Further requests whose prefix is SHORT_PREFIX tokens.
    """

    batch: int
    heads: int
    drafts: int
    prefix: int
    pool: str = "bf16"
    short: int = 0

    @property
    def key(self) -> str:
        short = f"+{self.short}" if self.short else ""
        return f"bs{self.batch}{short}-h{self.heads}-t{self.drafts}-l{self.prefix}-{self.pool}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prefix of each request, the long ones first."""
        return (self.prefix,) * self.batch + (SHORT_PREFIX,) * self.short

    @property
    def rows(self) -> int:
        """Query rows of a request: tokens times heads, which share its keys."""
        return self.drafts * self.heads

    @property
    def pool_bytes(self) -> int:
        """The prefixes' rows, each once."""
        return sum(self.lengths) * QK_DIM * POOLS[self.pool]

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products over the prefixes."""
        return 2 * self.rows * sum(self.lengths) * (QK_DIM + V_DIM)

    def label(self) -> str:
        prefix = f"{self.prefix >> 10}K" if self.prefix >= 1024 else str(self.prefix)
        short = f"+{self.short}" if self.short else ""
        return f"{self.batch}{short} x {self.heads} x {self.drafts} x {prefix}"


TABLE = tuple(
    Cell(*shape)
    for shape in (
        (1, 8, 16, 1 << 10),
        (1, 8, 16, 8 << 10),
        (1, 8, 16, 32 << 10),
        (1, 8, 16, 128 << 10),
        (1, 16, 32, 32 << 10),
        (1, 8, 64, 32 << 10),
        (8, 8, 16, 8 << 10),
        (8, 16, 32, 8 << 10),
        (32, 8, 8, 4 << 10),
        (1, 8, 8, 32 << 10),
    )
)
"""Compared with every peer."""

SMALL = tuple(Cell(1, 8, 16, prefix) for prefix in (0, 16, 256, 1 << 10))
"""Up to 1K of prefix: what a call costs when there is little to do."""

LONG = Cell(1, 8, 16, 128 << 10)
MIXED = tuple(replace(LONG, short=short) for short in (0, 1, 3, 7))
"""One very long request alone, and beside short ones."""


MODES = tuple(Cell(*shape) for shape in ((1, 8, 16, 1 << 10), (1, 8, 16, 32 << 10), (8, 8, 16, 8 << 10)))
"""Of which it is told what each mode costs."""


def grid() -> list[Cell]:
    """Every cell of the grid, in an order in which any first part is a sample of the whole."""
    cells = [
        Cell(batch, heads, drafts, prefix)
        for batch in (1, 2, 4, 8, 16, 32)
        for heads in (8, 12, 16)
        for drafts in (1, 4, 8, 16, 32, 64)
        for prefix in (0, 16, 256, 1 << 10, 4 << 10, 32 << 10, 128 << 10, 256 << 10)
    ]
    random.Random(0).shuffle(cells)
    return cells


def needed(what: str, pool: str) -> list[Cell]:
    """Every cell that a run times, in its order: of "grid", "modes" or "table"."""
    if what == "grid":
        return grid()
    if what == "modes":
        return list(MODES)
    if pool != "bf16":
        return [*TABLE, *(replace(cell, pool=pool) for cell in TABLE)]
    return [*TABLE, *SMALL, *MIXED]


@dataclass(frozen=True)
class Ceilings:
    """What this card reaches.

    Attributes:
        copy: Bytes read and written per microsecond by a large device-to-device copy.
        mma: bf16 operations per microsecond of mma.sync.
    """

    copy: float
    mma: float

    def bytes_us(self, cell: Cell) -> float:
        return cell.pool_bytes / self.copy

    def mma_us(self, cell: Cell) -> float:
        return cell.flops / self.mma

    def floor_us(self, cell: Cell) -> float:
        """No kernel of mma.sync takes less."""
        return max(self.bytes_us(cell), self.mma_us(cell))
