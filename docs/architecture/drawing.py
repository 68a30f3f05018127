"""Lanes, boxes and arrows as SVG, legible in light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

WIDTH, GAP, MARGIN = 304, 44, 18
HEAD, LINE, ROW_GAP, TITLE = 22, 16, 30, 44
STYLE = """
.paper { fill: #ffffff } .lane { fill: #f3f5f8 } .lane-name { fill: #57606a; font-weight: 600 }
.box { stroke-width: 1.2 } .text { fill: #24292f } .head { font-weight: 600; font-family: ui-monospace, monospace }
.stock { fill: #ffffff; stroke: #8c959f } .ours { fill: #ddf0ff; stroke: #0969da }
.device { fill: #dcf5e3; stroke: #1a7f37 } .told { fill: #fff3d6; stroke: #9a6700 }
.arrow { stroke: #57606a; stroke-width: 1.5; fill: none } .tip { fill: #57606a }
.label { fill: #57606a; font-style: italic } .behind { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  .paper { fill: #0d1117 } .lane { fill: #161b22 } .lane-name, .label { fill: #9da7b3 } .text { fill: #e6edf3 }
  .stock { fill: #21262d; stroke: #8b949e } .ours { fill: #0c2d4d; stroke: #58a6ff }
  .device { fill: #0f3320; stroke: #3fb950 } .told { fill: #3a2c05; stroke: #d29922 }
  .arrow { stroke: #9da7b3 } .tip { fill: #9da7b3 } .behind { fill: #0d1117 }
}
"""


@dataclass(frozen=True)
class Box:
    """A box: its place, whose it is, its head and what stands below.

    Attributes:
        key: For arrows.
        lane: Which, from 0.
        row: Which, from 0; a row is as high as its highest box.
        kind: stock, ours, device or told.
    """

    key: str
    lane: int
    row: int
    kind: str
    head: str
    text: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        return HEAD + LINE * len(self.text) + 10


@dataclass(frozen=True)
class Picture:
    """A whole picture; arrows are "from to" or "from to: label", and plain lines with ~ in front."""

    title: str
    lanes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """A box's place on the paper."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def middle(self) -> tuple[float, float]:
        return self.left + self.width / 2, self.top + self.height / 2


def svg(picture: Picture) -> str:
    """The picture as a document of its own: no script, no font, nothing from elsewhere."""
    rows = 1 + max(box.row for box in picture.boxes)
    heights = [max(box.height for box in picture.boxes if box.row == row) for row in range(rows)]
    tops = [MARGIN + TITLE + 36 + sum(heights[:row]) + ROW_GAP * row for row in range(rows)]
    bottom = tops[-1] + heights[-1] + MARGIN
    lefts = [MARGIN + lane * (WIDTH + GAP) for lane in range(len(picture.lanes))]
    frames = {box.key: Frame(lefts[box.lane], tops[box.row], WIDTH, box.height) for box in picture.boxes}
    width, height = lefts[-1] + WIDTH + MARGIN, bottom + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="text" x="{MARGIN}" y="{MARGIN + 16}" font-size="16" font-weight="600">'
        f"{escape(picture.title)}</text>",
    ]
    for left, name in zip(lefts, picture.lanes, strict=True):
        top = MARGIN + TITLE - 12
        parts.append(
            f'<rect class="lane" x="{left - 10}" y="{top}" width="{WIDTH + 20}" height="{bottom - top}" rx="8"/>'
            f'<text class="lane-name" x="{left}" y="{top + 20}">{escape(name)}</text>'
        )
    labels, bends = [], 0
    for arrow in picture.arrows:
        tip = "" if arrow.startswith("~") else ' marker-end="url(#tip)"'
        ends, _, label = arrow.removeprefix("~").partition(": ")
        start, end = (frames[key] for key in ends.split())
        points = route(start, end, (0.35, 0.65)[bends % 2])
        bends += len(points) > 2
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        parts.append(f'<polyline class="arrow" points="{path}"{tip}/>')
        if label:
            labels.append(_label(points, label))
    for box in picture.boxes:
        parts.append(_box(box, frames[box.key]))
    return "\n".join([*parts, *labels, "</svg>"]) + "\n"


def route(start: Frame, end: Frame, share: float) -> list[tuple[float, float]]:
    """Straight down a lane, else from side to side; where the rows differ it bends at that share of the gap."""
    if start.left == end.left:
        x = start.middle[0]
        return [(x, start.bottom), (x, end.top)] if start.top < end.top else [(x, start.top), (x, end.bottom)]
    right = start.left < end.left
    begin = (start.right if right else start.left, start.middle[1])
    finish = (end.left if right else end.right, end.middle[1])
    if abs(begin[1] - finish[1]) < 14:
        return [begin, (finish[0], begin[1])]
    bend = finish[0] - GAP * share if right else finish[0] + GAP * share
    return [begin, (bend, begin[1]), (bend, finish[1]), finish]


def _label(points: list[tuple[float, float]], text: str) -> str:
    (x, y), (to_x, to_y) = points[0], points[1]
    if x == to_x:  # beside a line that goes down
        return f'<text class="label" x="{x + 8:g}" y="{(y + to_y) / 2 + 4:g}">{escape(text)}</text>'
    middle = (x + to_x) / 2
    anchor = f'x="{middle:g}" y="{y - 6:g}" text-anchor="middle"'
    return f'<text class="label" {anchor} font-size="11">{escape(text)}</text>'


def _box(box: Box, frame: Frame) -> str:
    lines = [
        f'<rect class="box {box.kind}" x="{frame.left:g}" y="{frame.top:g}" width="{frame.width:g}" '
        f'height="{frame.height:g}" rx="6"/>',
        f'<text class="text head" x="{frame.left + 10:g}" y="{frame.top + 17:g}">{escape(box.head)}</text>',
    ]
    for number, text in enumerate(box.text):
        y = frame.top + HEAD + LINE * number + 12
        lines.append(f'<text class="text" x="{frame.left + 10:g}" y="{y:g}">{escape(text)}</text>')
    return "\n".join(lines)
