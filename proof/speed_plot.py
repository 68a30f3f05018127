"""Draws what speed.py measured. Needs neither a GPU nor SGLang."""

from __future__ import annotations

from bench import svg

from .speed import BATCHES, CELLS, CONTEXTS, LAYERS, Cell, Times, name_of

_COLORS = {"off": "#b23a48", "on": "#0b6e4f", "validate": "#3d5a80"}
_DASHED_BATCHES = BATCHES[1:]


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
    y = svg.Axis("times off's tokens a second", svg.decades([min(values) * 0.9, *values]), log=True)
    groups = [f"{cell.context // 1024}K\nx {cell.batch}" for cell in cells]
    title = f"Decode throughput by context and requests, {LAYERS[0]} layers"
    return svg.bars(title, caption, groups, y, series, mark=1.0)


def step(times: Times, caption: str) -> str | None:
    """Milliseconds of a verify step over context, a line for each mode and batch; None where nothing is measured."""
    series = []
    for batch in BATCHES:
        for mode, color in _COLORS.items():
            points = [
                (float(context), value)
                for context in CONTEXTS
                if (value := _value(times, mode, Cell(context, batch), "step_ms"))
            ]
            # Of validate only the single request: three more lines would hide the others.
            if len(points) > 1 and (mode != "validate" or batch == BATCHES[0]):
                series.append(svg.Series(f"{mode} x {batch}", color, points, dashed=batch in _DASHED_BATCHES))
    if not series:
        return None
    x = svg.Axis("context, tokens", [float(c) for c in CONTEXTS], log=True, label=lambda c: f"{c / 1024:g}K")
    y = svg.Axis("milliseconds", svg.decades([value for one in series for _, value in one.points]), log=True)
    return svg.lines(f"Time of a verify step by requests, {LAYERS[0]} layers", caption, x, y, series)


def _value(times: Times, mode: str, cell: Cell, figure: str) -> float | None:
    found = times.get(name_of(mode, LAYERS[0]), {}).get(cell.name)
    return found[figure] if found else None
