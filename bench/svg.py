"""Line and bar charts as SVG: what the benchmark's plots need, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 820, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 62, 84
_STYLE = "font-family='system-ui, sans-serif' font-size='12' fill='#222'"


@dataclass(frozen=True)
class Series:
    """One contender's values.

    Attributes:
        points: For lines (x, y); for bars (index of the group, y).
    """

    name: str
    color: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """A value axis.

    Attributes:
        title: With its unit.
        ticks: Values that get a line and a label; the first and the last are the axis's ends.
        log: Logarithmic.
        label: Formats a tick.
    """

    title: str
    ticks: Sequence[float]
    log: bool = False
    label: Callable[[float], str] = "{:g}".format

    def share(self, value: float) -> float:
        """Where the value lies between the ends, 0 to 1 within them."""
        first, last = self.ticks[0], self.ticks[-1]
        if self.log:
            return math.log(value / first) / math.log(last / first)
        return (value - first) / (last - first)


def decades(values: Sequence[float]) -> list[float]:
    """Ticks of a logarithmic axis that holds the values: powers of ten."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def lines(title: str, caption: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """A line chart."""
    parts = [_grid(y)]
    for tick in x.ticks:
        at = _x(x.share(tick))
        parts.append(
            f"<text x='{at:.1f}' y='{HEIGHT - BOTTOM + 18}' text-anchor='middle'>{escape(x.label(tick))}</text>"
        )
    for one in series:
        places = [(_x(x.share(px)), _y(y.share(py))) for px, py in one.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        dash = " stroke-dasharray='6 4'" if one.dashed else ""
        parts.append(f"<polyline points='{path}' fill='none' stroke='{one.color}' stroke-width='2'{dash}/>")
        if not one.dashed:
            parts += [f"<circle cx='{px:.1f}' cy='{py:.1f}' r='3' fill='{one.color}'/>" for px, py in places]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f"<text x='{middle}' y='{HEIGHT - BOTTOM + 38}' text-anchor='middle'>{escape(x.title)}</text>")
    return _page(title, caption, y, series, parts)


def bars(title: str, caption: str, groups: Sequence[str], y: Axis, series: Sequence[Series], mark: float) -> str:
    """Groups of bars, with a heavier line at the value `mark`, from which bars start on a logarithmic axis."""
    parts = [_grid(y)]
    wide = 1 / len(groups)
    for index, group in enumerate(groups):
        at, down = _x((index + 0.5) * wide), HEIGHT - BOTTOM + 16
        for row, text in enumerate(group.split("\n")):
            parts.append(f"<text x='{at:.1f}' y='{down + 14 * row}' text-anchor='middle'>{escape(text)}</text>")
    for place, one in enumerate(series):
        width = 0.8 * wide / len(series)
        for group_index, value in one.points:
            left = _x((group_index + 0.1) * wide + place * width)
            ends = _y(y.share(value)), _y(y.share(mark) if y.log else 0)
            top = min(ends)
            size = f"width='{_x(width) - _x(0) - 1:.1f}' height='{max(ends) - top:.1f}'"
            parts.append(f"<rect x='{left:.1f}' y='{top:.1f}' {size} fill='{one.color}'/>")
    at = _y(y.share(mark))
    parts.append(
        f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{at:.1f}' y2='{at:.1f}' stroke='#222' stroke-width='1.5'/>"
    )
    return _page(title, caption, y, series, parts)


def _page(title: str, caption: str, y: Axis, series: Sequence[Series], parts: Sequence[str]) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    head = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        f"<g {_STYLE}>",
        f"<text x='{LEFT}' y='22' font-size='15' font-weight='600'>{escape(title)}</text>",
        f"<text x='16' y='{middle}' text-anchor='middle' transform='rotate(-90 16 {middle})'>{escape(y.title)}</text>",
        f"<text x='{LEFT}' y='{HEIGHT - 10}' font-size='11' fill='#666'>{escape(caption)}</text>",
    ]
    left = float(LEFT)
    for one in series:
        head.append(f"<rect x='{left}' y='34' width='12' height='12' fill='{one.color}'/>")
        head.append(f"<text x='{left + 17}' y='44'>{escape(one.name)}</text>")
        left += 40 + 7 * len(one.name)
    return "\n".join([*head, *parts, "</g>", "</svg>", ""])


def _grid(y: Axis) -> str:
    drawn = []
    for tick in y.ticks:
        at = _y(y.share(tick))
        drawn.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{at:.1f}' y2='{at:.1f}' stroke='#ddd'/>")
        drawn.append(f"<text x='{LEFT - 8}' y='{at + 4:.1f}' text-anchor='end'>{escape(y.label(tick))}</text>")
    return "\n".join(drawn)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
