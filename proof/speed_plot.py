"""Draws what speed.py measured. Needs neither a GPU nor SGLang."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench import svg

from .speed import BATCHES, CELLS, CONTEXTS, LAYERS, Cell, Times, name_of

_COLORS = {"off": "#b23a48", "on": "#0b6e4f", "validate": "#3d5a80"}
_DRAWN_BATCHES = (BATCHES[0], BATCHES[-1])
"""Of the step's lines: those between would only fill the space."""


def throughput(times: Times, caption: str) -> str | None:
    """Decode tokens a second of on and validate over off's, a group of bars for each cell; None without such a cell."""
    cells = [cell for cell in CELLS if _value(times, "off", cell, "tokens_a_second")]
    series = []
    for mode in ("on", "validate"):
        points = []
        for index, cell in enumerate(cells):
            stock, ours = (_value(times, one, cell, "tokens_a_second") for one in ("off", mode))
            if stock and ours:
                points.append((float(index), ours / stock))
        if points:
            series.append(svg.Series(f"{mode} / off", _COLORS[mode], points))
    if not series:
        return None
    values = [1.0, *(value for one in series for _, value in one.points)]
    y = svg.Axis("times off's tokens a second", _octaves(values), log=True)
    groups = [f"{cell.context // 1024}K\nx {cell.batch}" for cell in cells]
    title = f"Decode throughput by context and requests, {LAYERS[0]} layers"
    return svg.bars(title, caption, groups, y, series, mark=1.0)


def step(times: Times, caption: str) -> str | None:
    """Milliseconds of a verify step over context, a line for each mode and batch; None where nothing is measured."""
    series = []
    for batch in _DRAWN_BATCHES:
        for mode, color in _COLORS.items():
            points = [
                (float(context), value)
                for context in CONTEXTS
                if (value := _value(times, mode, Cell(context, batch), "step_ms"))
            ]
            if len(points) > 1:
                dashed = batch != _DRAWN_BATCHES[0]
                series.append(svg.Series(f"{mode} x {batch}" + (" (dashed)" if dashed else ""), color, points, dashed))
    if not series:
        return None
    x = svg.Axis("context, tokens", [float(c) for c in CONTEXTS], log=True, label=lambda c: f"{c / 1024:g}K")
    y = svg.Axis("milliseconds", svg.decades([value for one in series for _, value in one.points]), log=True)
    return svg.lines(f"Time of a verify step by requests, {LAYERS[0]} layers", caption, x, y, series)


def _octaves(values: Sequence[float]) -> list[float]:
    """Ticks that hold the values: powers of two."""
    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [2.0**power for power in range(first, max(last, first + 1) + 1)]


def _value(times: Times, mode: str, cell: Cell, figure: str) -> float | None:
    found = times.get(name_of(mode, LAYERS[0]), {}).get(cell.name)
    return found[figure] if found else None
