"""The report's plots: difference per layer, over time and over prefix length; both kernels' times."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..evidence.history import largest
from ..evidence.read import Cell
from . import ranges, svg
from .document import Report
from .merge import Merged
from .saving import Times

_MOST_BATCHES = 3
_DIFFERENCE = "relative L2 difference"


def all_plots(report: Report) -> list[str]:
    """Each as a figure of HTML. Without values: a sentence that says so."""
    evidence = report.evidence
    return [
        _per_layer(evidence),
        _over_time(evidence),
        _over_prefix(evidence),
        *_times(report.times),
    ]


def _per_layer(evidence: Merged) -> str:
    title = "Difference per layer"
    layers = [layer for layer in evidence.layers() if layer.compare_calls]
    if not layers:
        return _empty(title, "No call was compared yet.")
    # Draft layers follow the target's.
    target = [layer for layer in layers if layer.model == "target"]
    draft = [layer for layer in layers if layer.model != "target"]
    after = max((layer.layer for layer in target), default=-1) + 1
    places = [*((layer.layer, layer) for layer in target), *((after + i, layer) for i, layer in enumerate(draft))]
    name = {place: ranges.layer(*layer.key) for place, layer in places}
    worst = [
        (float(x), each.worst_rel_l2, f"{name[x]}: worst {ranges.difference(each.worst_rel_l2)}") for x, each in places
    ]
    typical = [
        (float(x), each.rel_l2, f"{name[x]}: {ranges.difference(each.rel_l2)} over all calls") for x, each in places
    ]
    series = [svg.Series("worst call", 0, worst), svg.Series("all calls together", 1, typical)]
    axis = svg.Axis(
        "layer" + (f" (the draft's from {after} on)" if draft else ""),
        min(name) - 0.5,
        max(name) + 0.5,
        svg.ticks_of(sorted(name)),
    )
    said = f"{len(places)} layers; the worst is {_worst(worst)}."
    return _figure("layers", title, said, axis, _DIFFERENCE, series, _references(evidence, yardstick=True))


def _over_time(evidence: Merged) -> str:
    title = "Difference over time"
    points = evidence.points()
    if not points:
        return _empty(title, "No call was compared yet.")
    worst = [
        ((p.start + p.end) / 2, p.worst, f"{_moment(p.end)}: worst {ranges.difference(p.worst)}, {p.calls:,} calls")
        for p in points
    ]
    mean = [
        ((p.start + p.end) / 2, p.mean, f"{_moment(p.end)}: mean {ranges.difference(p.mean)}")
        for p in points
        if p.mean is not None
    ]
    series = [svg.Series("worst seen", 0, worst), *([svg.Series("mean", 1, mean, joined=True)] if mean else [])]
    first, last = points[0].start, max(p.end for p in points)
    form = "%H:%M" if last - first < 36 * 3600 else "%m-%d"
    marks = [first + (last - first) * share / 4 for share in (0.25, 1.25, 2.25, 3.25)]
    ticks = [(at, time.strftime(form, time.gmtime(at))) for at in marks]
    days = {time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (first, last)}
    axis = svg.Axis(f"time, UTC ({' to '.join(sorted(days))})", first, last, ticks)
    said = f"{len(points)} intervals; the worst is {_worst(worst)}."
    return _figure("time", title, said, axis, _DIFFERENCE, series, _references(evidence))


def _over_prefix(evidence: Merged) -> str:
    title = "Difference over prefix length"
    if not evidence.cells:
        return _empty(title, "No shape was counted yet.")
    starts = sorted({cell.prefix_from for cell in evidence.cells})
    worst, mean = [], []
    for place, start in enumerate(starts):
        cells = [cell for cell in evidence.cells if cell.prefix_from == start and cell.calls]
        if not cells:
            continue
        label = ranges.prefix(start, cells[0].prefix_below)
        high = largest([cell.worst_rel_l2 for cell in cells])
        middle = sum(cell.mean_rel_l2 * cell.calls for cell in cells) / sum(cell.calls for cell in cells)
        worst.append((float(place), high, f"{label}: worst {ranges.difference(high)}"))
        mean.append((float(place), middle, f"{label}: mean {ranges.difference(middle)}"))
    series = [svg.Series("worst call", 0, worst), svg.Series("mean", 1, mean, joined=True)]
    said = f"{len(starts)} ranges of prefix length; the worst is {_worst(worst)}."
    return _figure("prefix", title, said, _prefix_axis(starts), _DIFFERENCE, series, _references(evidence))


def _times(times: Sequence[Times]) -> list[str]:
    title = "Time of one layer's call"
    if not times:
        return [_empty(title, "Nothing was timed: only calls inside CUDA graphs are, on a GPU.")]
    calls: dict[int, int] = {}
    for each in times:
        calls[each.cell.batch_from] = calls.get(each.cell.batch_from, 0) + each.cell.timed_calls
    most = sorted(sorted(calls, key=lambda batch: calls[batch], reverse=True)[:_MOST_BATCHES])
    figures = []
    for batch in most:
        own = sorted((each for each in times if each.cell.batch_from == batch), key=lambda each: each.cell.prefix_from)
        starts = [each.cell.prefix_from for each in own]
        stock = [(float(i), each.stock_us, _timed(each.cell, "stock", each.stock_us)) for i, each in enumerate(own)]
        ours = [(float(i), each.kernel_us, _timed(each.cell, "KDTree", each.kernel_us)) for i, each in enumerate(own)]
        series = [svg.Series("stock", 0, stock, joined=True), svg.Series("KDTree", 1, ours, joined=True)]
        name = ranges.batch(batch, own[0].cell.batch_below)
        said = f"Stock takes {own[-1].stock_us:.0f} us with the longest prefix, KDTree {own[-1].kernel_us:.0f} us."
        axis = _prefix_axis(starts)
        figures.append(_figure(f"times-{batch}", f"{title}, batch {name}", said, axis, "microseconds", series))
    return figures


def _references(evidence: Merged, *, yardstick: bool = False) -> list[svg.Reference]:
    lines = [] if evidence.bound is None else [svg.Reference(f"bound {evidence.bound:g}", evidence.bound)]
    if yardstick and evidence.yardstick:
        found = evidence.yardstick
        lines.append(svg.Reference("stock against float64", found.stock_rel_l2))
        lines.append(svg.Reference("KDTree against float64", found.kernel_rel_l2))
    return lines


def _prefix_axis(starts: Sequence[int]) -> svg.Axis:
    places = [float(place) for place in range(len(starts))]
    ticks = svg.spread(places, [ranges.short(start) for start in starts])
    return svg.Axis("prefix, tokens from", -0.5, len(starts) - 0.5, ticks)


def _figure(
    name: str,
    title: str,
    said: str,
    axis: svg.Axis,
    y_title: str,
    series: Sequence[svg.Series],
    references: Sequence[svg.Reference] = (),
) -> str:
    picture = svg.chart(name, title, said, axis, y_title, series, references)
    return f"<figure><h3>{title}</h3>{picture}{svg.legend(series, references)}<figcaption>{said}</figcaption></figure>"


def _empty(title: str, said: str) -> str:
    return f"<figure class='empty'><h3>{title}</h3><p>{said}</p></figure>"


def _timed(cell: Cell, name: str, us: float) -> str:
    return f"{name}, prefix {ranges.prefix(cell.prefix_from, cell.prefix_below)}: {us:.1f} us"


def _worst(points: Sequence[tuple[float, float, str]]) -> str:
    return ranges.difference(largest([y for _, y, _ in points]))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
