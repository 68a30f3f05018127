"""Draws a file of results. Needs nothing but Python."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kdtree_verify.errors import UsageError

from . import svg
from .cells import Ceilings, Cell
from .model import cell_of
from .report import NAMES
from .results import Results, Run
from .verdict import us

Row = dict[str, Any]
COLORS = {
    "kdtree": "#0b6e4f",
    "stock_sm90": "#b23a48",
    "stock_sm120": "#e39a8b",
    "flashinfer_fa2": "#3d5a80",
    "flashinfer_fa3": "#98bfd9",
}
FLOOR_COLOR = "#888888"


def draw(path: Path, folder: Path) -> list[Path]:
    """Writes NAME-time.svg, NAME-speedup.svg and NAME-floor.svg of a file's table, NAME-grid.svg of its grid.

    Raises:
        UsageError: The file is not one of results, there is nothing in it to draw, or the folder cannot be written.
    """
    if not path.is_file():
        raise UsageError("no file of results", str(path), "run ci/bench first, or name another")
    sections = Results(path).sections
    pages: dict[str, str] = {}
    if run := sections.get("table"):
        if any(_is_line(row) and us(row) for row in run["rows"]):
            pages["time"] = time(run)
        pages |= {"speedup": speedup(run), "floor": floor(run)}
    if (run := sections.get("grid")) and any(us(row, run["own_stock"]) for row in run["rows"]):
        pages["grid"] = grid(run)
    if not pages:
        raise UsageError("nothing to draw", f"{path}: {', '.join(sections) or 'no section'}", "run ci/bench first")
    drawn = {folder / f"{path.stem}-{name}.svg": page for name, page in pages.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, page in drawn.items():
            file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError("the drawings cannot be written", str(error), "name another folder with --into") from error
    return [*drawn]


def caption(run: Run) -> str:
    """Card, date and what ran."""
    return (
        f"{run['hardware']['name']}, {run['date'][:10]}; sources {run['library']['source_hash'][:12]}, "
        f"SGLang {run['versions'].get('sglang', '-')}, FlashInfer {run['versions'].get('flashinfer-python', '-')}; "
        "tree mask on (FlashInfer: a chain)"
    )


def time(run: Run) -> str:
    """Time over prefix length, one request of 8 heads and 16 draft tokens."""
    rows = {row["prefix"]: row for row in [*run.get("small", []), *run["rows"]] if _is_line(row) and row["prefix"]}
    ceilings = _ceilings(run)
    prefixes = sorted(rows)
    drawn = []
    for name, color in COLORS.items():
        points = [(float(prefix), time) for prefix in prefixes if (time := us(rows[prefix], name))]
        if points:
            drawn.append(svg.Series(NAMES[name], color, points))
    floors = [(float(prefix), ceilings.floor_us(cell_of(rows[prefix]))) for prefix in prefixes if prefix >= 1024]
    drawn.append(svg.Series("floor", FLOOR_COLOR, floors, dashed=True))
    values = [value for one in drawn for _, value in one.points]
    x = svg.Axis("prefix, tokens", [float(prefix) for prefix in prefixes], log=True, label=_tokens)
    y = svg.Axis("microseconds", svg.decades(values), log=True)
    return svg.lines("Time of a verify call: 1 request, 8 heads, 16 draft tokens", caption(run), x, y, drawn)


def speedup(run: Run) -> str:
    """How many times as long each peer takes."""
    drawn = []
    for name, color in COLORS.items():
        points = [
            (float(index), theirs / ours)
            for index, row in enumerate(run["rows"])
            if name != "kdtree" and (ours := us(row)) and (theirs := us(row, name))
        ]
        if points:
            drawn.append(svg.Series(f"{NAMES[name]} / kdtree", color, points))
    values = [1.0, *(value for one in drawn for _, value in one.points)]
    y = svg.Axis("times kdtree's time", svg.decades([min(values) * 0.9, *values]), log=True)
    return svg.bars("Speed-up", caption(run), _groups(run), y, drawn, mark=1.0)


def floor(run: Run) -> str:
    """Share of the floor: copying the pool's rows, or multiplying, whichever takes longer on this card."""
    ceilings = _ceilings(run)
    drawn = []
    for name, color in COLORS.items():
        points = [
            (float(index), ceilings.floor_us(cell_of(row)) / time)
            for index, row in enumerate(run["rows"])
            if (time := us(row, name))
        ]
        if points:
            drawn.append(svg.Series(NAMES[name], color, points))
    y = svg.Axis("floor / time", [0, 0.25, 0.5, 0.75, 1], label="{:.0%}".format)
    return svg.bars(
        "Fraction of the floor (fa3 multiplies by wgmma: its floor is lower)", caption(run), _groups(run), y, drawn, 0.5
    )


def grid(run: Run) -> str:
    """Speed-up over SGLang's kernel by prefix length: least, geometric mean and most over the grid's cells."""
    stock = run["own_stock"]
    by_prefix: dict[int, list[float]] = {}
    for row in run["rows"]:
        if (ours := us(row)) and (theirs := us(row, stock)):
            by_prefix.setdefault(row["prefix"], []).append(theirs / ours)
    places = sorted(by_prefix)
    kinds: dict[str, Callable[[list[float]], float]] = {
        "least": min,
        "geometric mean": statistics.geometric_mean,
        "most": max,
    }
    colors = (COLORS["stock_sm90"], COLORS["kdtree"], COLORS["flashinfer_fa2"])
    drawn = [
        svg.Series(name, color, [(float(i), kind(by_prefix[prefix])) for i, prefix in enumerate(places)])
        for (name, kind), color in zip(kinds.items(), colors, strict=True)
    ]
    values = [1.0, *(value for one in drawn for _, value in one.points)]
    y = svg.Axis("times kdtree's time", svg.decades(values), log=True)
    count = sum(map(len, by_prefix.values()))
    title = f"Speed-up over SGLang's kernel by prefix length, {count} cells of the grid"
    return svg.bars(title, caption(run), [_tokens(prefix) for prefix in places], y, drawn, mark=1.0)


def _is_line(row: Row) -> bool:
    return (row["batch"], row["heads"], row["drafts"], row["short"]) == (1, 8, 16, 0)


def _ceilings(run: Run) -> Ceilings:
    return Ceilings(run["ceilings"]["copy"], run["ceilings"]["mma"])


def _groups(run: Run) -> list[str]:
    return [_group(cell_of(row)) for row in run["rows"]]


def _group(cell: Cell) -> str:
    return f"{cell.batch} x {cell.heads} x {cell.drafts}\n{_tokens(cell.prefix)}"


def _tokens(count: float) -> str:
    return f"{count / 1024:g}K" if count >= 1024 else f"{count:g}"
