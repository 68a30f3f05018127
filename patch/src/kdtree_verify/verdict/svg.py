"""Charts as SVG for a page: one viewBox, colors and dashes by the page's classes, a title for each mark.

No color carries a meaning alone: each series has a mark of its own, each line a dash of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 44
_MARK = 3.2


@dataclass(frozen=True)
class Series:
    """Values over x.

    Attributes:
        kind: 0, 1 or 2: which color, mark and dash.
        points: (x, y, title). A y that is no number stands at the top, one of 0 at the foot.
        joined: Whether a line joins them.
    """

    name: str
    kind: int
    points: Sequence[tuple[float, float, str]]
    joined: bool = False


@dataclass(frozen=True)
class Reference:
    """A named horizontal line."""

    name: str
    y: float


@dataclass(frozen=True)
class Axis:
    """An x axis from `first` to `last`, with a label at each tick."""

    title: str
    first: float
    last: float
    ticks: Sequence[tuple[float, str]]

    def at(self, x: float) -> float:
        share = (x - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)


class Logarithmic:
    """A y axis of whole decades, or of 1-2-5 steps where one decade holds all."""

    def __init__(self, values: Sequence[float]):
        # No more decades than have a name: what is beyond them stands at the edge.
        known = [min(max(value, 1e-18), 1e18) for value in values if math.isfinite(value) and value > 0] or [1.0]
        low, high = _step_below(min(known)), _step_above(max(known))
        if high / low <= 1.0:
            low, high = low / 2, high * 2
        self.first, self.last = low, high
        decades = [10.0**power for power in range(-18, 19) if low <= 10.0**power <= high]
        steps = [m * 10.0**power for power in range(-18, 19) for m in (1, 2, 5)]
        self.ticks = decades if len(decades) >= 3 else [tick for tick in steps if low * 0.999 <= tick <= high * 1.001]

    def at(self, y: float) -> float:
        if not math.isfinite(y):
            return TOP
        first, last = math.log(self.first), math.log(self.last)
        share = (math.log(y) - first) / (last - first) if y > 0 else 0.0
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)


def chart(
    name: str,
    title: str,
    description: str,
    x: Axis,
    y_title: str,
    series: Sequence[Series],
    references: Sequence[Reference] = (),
) -> str:
    """One chart. `name` is unique in the page, and part of its ids."""
    values = [y for one in series for _, y, _ in one.points] + [line.y for line in references]
    y = Logarithmic(values)
    right, foot = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f"<svg class='chart' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-labelledby='{name}-t {name}-d'>",
        f"<title id='{name}-t'>{escape(title)}</title><desc id='{name}-d'>{escape(description)}</desc>",
    ]
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{right}' y1='{at:.1f}' y2='{at:.1f}'/>")
        parts.append(f"<text x='{LEFT - 5}' y='{at + 4:.1f}' text-anchor='end'>{_number(tick)}</text>")
    for tick, label in x.ticks:
        at = x.at(tick)
        anchor = "end" if at > right - 14 else "middle"
        parts.append(f"<line class='axis' x1='{at:.1f}' x2='{at:.1f}' y1='{foot}' y2='{foot + 4}'/>")
        parts.append(f"<text x='{at:.1f}' y='{foot + 17}' text-anchor='{anchor}'>{escape(label)}</text>")
    parts.append(f"<path class='axis area' d='M{LEFT} {TOP}V{foot}H{right}'/>")
    middle = (LEFT + right) / 2
    parts.append(f"<text x='{middle:.0f}' y='{HEIGHT - 6}' text-anchor='middle'>{escape(x.title)}</text>")
    up = (TOP + foot) / 2
    parts.append(f"<text x='12' y='{up}' text-anchor='middle' transform='rotate(-90 12 {up})'>{escape(y_title)}</text>")
    for one in series:
        places = [(x.at(px), y.at(py), title) for px, py, title in one.points]
        if one.joined:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in places)
            parts.append(f"<polyline class='line k{one.kind}' points='{path}'/>")
        parts += [_mark(one.kind, px, py, title) for px, py, title in places]
    for index, reference in enumerate(references):
        at = y.at(reference.y)
        parts.append(
            f"<line class='reference r{index}' x1='{LEFT}' x2='{right}' y1='{at:.1f}' y2='{at:.1f}'>"
            f"<title>{escape(reference.name)}</title></line>"
        )
    return "\n".join([*parts, "</svg>"])


def legend(series: Sequence[Series], references: Sequence[Reference] = ()) -> str:
    """Each mark and line with its name, as HTML."""
    items = []
    for one in series:
        line = f"<line class='line k{one.kind}' x1='0' x2='26' y1='7' y2='7'/>" if one.joined else ""
        items.append((line + _mark(one.kind, 13, 7, None), one.name))
    for index, reference in enumerate(references):
        items.append((f"<line class='reference r{index}' x1='0' x2='26' y1='7' y2='7'/>", reference.name))
    keys = "".join(
        f"<li><svg class='key' viewBox='0 0 26 14' aria-hidden='true'>{picture}</svg> {escape(name)}</li>"
        for picture, name in items
    )
    return f"<ul class='legend'>{keys}</ul>"


def _mark(kind: int, x: float, y: float, title: str | None) -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    name = f"class='point k{kind}'"
    if kind == 0:
        return f"<circle {name} cx='{x:.1f}' cy='{y:.1f}' r='{_MARK}'>{inner}</circle>"
    if kind == 1:
        side = 2 * _MARK - 1
        return (
            f"<rect {name} x='{x - side / 2:.1f}' y='{y - side / 2:.1f}' width='{side}' height='{side}'>{inner}</rect>"
        )
    return f"<path {name} d='M{x:.1f} {y - _MARK:.1f}l{_MARK} {2 * _MARK}h{-2 * _MARK}z'>{inner}</path>"


def ticks_of(values: Sequence[int], most: int = 7) -> list[tuple[float, str]]:
    """Whole numbers of which not too many are named."""
    if not values:
        return []
    first, last = min(values), max(values)
    step = next(m * 10**power for power in range(20) for m in (1, 2, 5) if (last - first) / (m * 10**power) < most)
    return [(float(n), str(n)) for n in range(-(-first // step) * step, last + 1, step)]


def spread(positions: Sequence[float], labels: Sequence[str], most: int = 6) -> list[tuple[float, str]]:
    """At most `most` of the labels, evenly."""
    step = -(-len(positions) // most) or 1
    return list(zip(positions[::step], labels[::step], strict=True))


def _step_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(m * power for m in (1, 2, 5) if m * power <= value * 1.0001)


def _step_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.9999)


def _number(value: float) -> str:
    return f"{value:g}" if 0.001 <= value < 1e6 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
