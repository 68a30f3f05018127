"""What a run says of each goal, by its own numbers only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .cells import Ceilings
from .model import cell_of
from .results import Run

Row = dict[str, Any]

GOALS = {
    1: "no cell of the grid slower than SGLang's kernel",
    2: "1.3 times FlashInfer fa2 in geometric mean, no row slower",
    3: "within 2x of the floor where that is 30 us or more",
    4: "15 us or less up to 1K of prefix, batch 1",
    5: "e4m3 pool: at most 10% slower where arithmetic bounds it, 1.4x faster where memory does",
    6: "cost follows the actual lengths",
    7: "error at most 1.1x that of SGLang's kernel",
}
FA2_SPEEDUP, FLOOR_RATIO, FLOOR_FROM_US, SMALL_US = 1.3, 2.0, 30.0, 15.0
FP8_SLOWDOWN, FP8_SPEEDUP, ERROR_RATIO = 1.1, 1.4, 1.1
LITTLE_MORE = 1.1
"""The goal says "little more"; this is what it is held to here."""


@dataclass(frozen=True)
class Verdict:
    """Attributes: goal: 1 to 7; reached: None where the run has not measured all of it; detail: by how much."""

    goal: int
    reached: bool | None
    detail: str

    def __str__(self) -> str:
        word = {True: "reached", False: "missed", None: "open"}[self.reached]
        return f"goal {self.goal}: {word}: {GOALS[self.goal]}: {self.detail}"


def verdicts(run: Run) -> list[Verdict]:
    """The goals that the run has numbers for."""
    ceilings = Ceilings(run["ceilings"]["copy"], run["ceilings"]["mma"])
    rows, stock = run["rows"], run["own_stock"]
    found: list[Verdict | None] = []
    if "grid_cells" in run:
        found.append(slower_than_stock(rows, stock, run["grid_cells"]))
    if run.get("bf16_rows"):
        found.append(fp8(rows, run["bf16_rows"], ceilings))
    else:
        if any("flashinfer_fa2" in row["times"] for row in rows):
            found.append(against_fa2(rows))
        found.append(floor(rows, ceilings))
        small = [*run.get("small", []), *(row for row in rows if row["batch"] == 1 and row["prefix"] <= 1024)]
        found.append(small_calls(small))
    if run.get("mixed"):
        found.append(lengths(run["mixed"], run["refilled"], run["small"]))
    found.append(error([*rows, *run.get("small", [])], stock))
    return [verdict for verdict in found if verdict is not None]


def us(row: Row, name: str = "kdtree") -> float | None:
    """The time of one contender, None where it has none."""
    entry = row["times"].get(name, {})
    return entry["us"] if entry.get("status") == "timed" else None


def _pairs(rows: Iterable[Row], other: str) -> Iterator[tuple[Row, float, float]]:
    """Rows that have our time and the other's."""
    for row in rows:
        ours, theirs = us(row), us(row, other)
        if ours and theirs:
            yield row, ours, theirs


def slower_cells(rows: Iterable[Row], other: str) -> list[Row]:
    """Rows in which the other's median is below ours, the worst first."""
    slower = [(ours / theirs, row["key"], row) for row, ours, theirs in _pairs(rows, other) if ours > theirs]
    return [row for _, _, row in sorted(slower, key=lambda item: item[:2], reverse=True)]


def slower_than_stock(rows: list[Row], stock: str, cells: int) -> Verdict:
    pairs = list(_pairs(rows, stock))
    skipped = sum("skipped" in row for row in rows)
    if not pairs:
        return Verdict(1, None, f"none of {cells} cells compared")
    slower = slower_cells(rows, stock)
    least = min(theirs / ours for _, ours, theirs in pairs)
    mean = statistics.geometric_mean(theirs / ours for _, ours, theirs in pairs)
    detail = f"{len(slower)} of {len(pairs)} cells slower, of {cells} in the grid"
    detail += f" ({skipped} skipped)" if skipped else ""
    detail += f"; least {least:.2f}x, mean {mean:.1f}x"
    if slower:
        return Verdict(1, False, detail)
    return Verdict(1, True if len(pairs) + skipped == cells else None, detail)


def against_fa2(rows: list[Row]) -> Verdict:
    pairs = list(_pairs(rows, "flashinfer_fa2"))
    if not pairs:
        return Verdict(2, None, "FlashInfer fa2 has no time")
    mean = statistics.geometric_mean(theirs / ours for _, ours, theirs in pairs)
    slower = slower_cells(rows, "flashinfer_fa2")
    detail = f"{mean:.2f}x over {len(pairs)} rows, {len(slower)} slower"
    detail += f" (worst {_label(slower[0])})" if slower else ""
    if len(pairs) < len(rows):
        return Verdict(2, None, f"{detail}; {len(rows) - len(pairs)} rows without a time")
    return Verdict(2, mean >= FA2_SPEEDUP and not slower, detail)


def floor(rows: list[Row], ceilings: Ceilings) -> Verdict:
    ratios = []
    for row in rows:
        least, ours = ceilings.floor_us(cell_of(row)), us(row)
        if ours and least >= FLOOR_FROM_US:
            ratios.append((ours / least, _label(row)))
    if not ratios:
        return Verdict(3, None, f"no row with a floor of {FLOOR_FROM_US:.0f} us")
    worst, label = max(ratios)
    beyond = sum(ratio > FLOOR_RATIO for ratio, _ in ratios)
    within = sum(ratio <= 1.5 for ratio, _ in ratios)
    mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
    detail = (
        f"worst {worst:.2f}x ({label}), mean {mean:.2f}x; {beyond} of {len(ratios)} beyond 2x, {within} within 1.5x"
    )
    return Verdict(3, worst <= FLOOR_RATIO, detail)


def small_calls(rows: list[Row]) -> Verdict | None:
    times = [(time, _label(row)) for row in rows if (time := us(row))]
    if not times:
        return None
    worst, label = max(times)
    return Verdict(4, worst <= SMALL_US, f"at most {worst:.1f} us ({label}) in {len(times)} cells")


def fp8(rows: list[Row], bf16_rows: list[Row], ceilings: Ceilings) -> Verdict:
    bf16 = {row["key"]: row for row in bf16_rows}
    bad, told = [], []
    for row in rows:
        twin = bf16.get(row["key"].rpartition("-")[0] + "-bf16")
        ours, base = us(row), us(twin) if twin else None
        if not twin or not ours or not base:
            continue
        cell = cell_of(twin)
        memory = ceilings.bytes_us(cell) > ceilings.mma_us(cell)
        told.append(f"{_label(row)} {base / ours:.2f}x{' (memory)' if memory else ''}")
        if ours > FP8_SLOWDOWN * base or (memory and base < FP8_SPEEDUP * ours):
            bad.append(_label(row))
    if not told:
        return Verdict(5, None, "no row has both times")
    return Verdict(5, not bad, f"speed against bf16: {', '.join(told)}" + (f"; short: {', '.join(bad)}" if bad else ""))


def lengths(mixed: list[Row], refilled: Row, small: list[Row]) -> Verdict | None:
    alone = next((us(row) for row in mixed if not row["short"]), None)
    if not alone:
        return None
    ratios = [(time / alone, f"with {row['short']} short ones") for row in mixed if row["short"] and (time := us(row))]
    replayed = us(refilled)
    own = next((us(row) for row in small if row["key"] == refilled["key"]), None)
    if replayed and own:
        ratios.append((replayed / own, f"{_label(refilled)} in a graph captured for {refilled['captured']}"))
    if not ratios:
        return Verdict(6, None, "nothing to compare")
    worst, what = max(ratios)
    return Verdict(6, worst <= LITTLE_MORE, f"at most {worst:.2f}x ({what}), held to {LITTLE_MORE}x")


def error(rows: list[Row], stock: str) -> Verdict:
    ratios, ours_all, stock_all = [], 0.0, 0.0
    for row in rows:
        ours, theirs = row["times"].get("kdtree", {}).get("error"), row["times"].get(stock, {}).get("error")
        if ours is not None and theirs:
            ratios.append((ours / theirs, _label(row)))
            ours_all, stock_all = ours_all + ours**2, stock_all + theirs**2
    if not ratios:
        return Verdict(7, None, "SGLang's kernel has no error to compare with")
    worst, label = max(ratios)
    above = sum(ratio > ERROR_RATIO for ratio, _ in ratios)
    detail = (
        f"worst {worst:.3f}x ({label}), together {(ours_all / stock_all) ** 0.5:.3f}x; {above} of {len(ratios)} above"
    )
    return Verdict(7, above == 0, detail)


def _label(row: Row) -> str:
    return cell_of(row).label()
