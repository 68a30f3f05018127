"""The report as one HTML file: no script, nothing from anywhere else, every text escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from ..evidence.read import Cell
from . import plots, ranges
from .document import Report, runs
from .judge import Criterion, Status, Verdict, well_compared
from .merge import LABELS
from .style import STYLE
from .text import evidence_line, headline, setup_line, when

_CLASSES = {Verdict.JUSTIFIED: "justified", Verdict.NOT_YET: "not-yet", Verdict.NO: "no"}
_SIGNS = {Verdict.JUSTIFIED: "✓", Verdict.NOT_YET: "…", Verdict.NO: "✕"}
_STATES = {Status.MET: "✓ met", Status.MISSING: "… missing", Status.FAILED: "✕ failed"}
# A browser that is told so asks nobody for anything, whatever a file of evidence held.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(report: Report) -> str:
    """The whole page."""
    title = f"KDTree: {report.verdict}"
    body = [
        _verdict(report),
        _section("What was asked", _criteria(report.criteria)),
        _limits(report),
        _section("Measured", f"<div class='plots'>{''.join(plots.all_plots(report))}</div>"),
        _section("Shapes", _coverage(report)),
        _section("Time saved, an estimate", _saving(report)),
        _section("Layers", _layers(report)),
        _section("What it holds for", _setup(report)),
        _section("Runs", _runs(report)),
        _not_counted(report),
    ]
    text = (
        "<!doctype html>\n"
        f"<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<title>{escape(title)}</title>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<link rel='icon' href='data:,'>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "replace").decode()  # a file's name need not be UTF-8


def _verdict(report: Report) -> str:
    word = f"<span aria-hidden='true'>{_SIGNS[report.verdict]}</span> {escape(str(report.verdict))}"
    lines = [headline(report) + ".", setup_line(report.evidence.setup), evidence_line(report)]
    return (
        "<h1>KDTree: is KDTREE_VERIFY=on justified?</h1>\n"
        f"<section class='verdict {_CLASSES[report.verdict]}' aria-label='Verdict'><p class='word'>{word}</p>"
        + "".join(f"<p>{escape(line)}</p>" for line in lines)
        + f"<p class='soft'>Made {when(report.made_at)} UTC</p></section>"
    )


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _criteria(criteria: Sequence[Criterion]) -> str:
    order = (Status.FAILED, Status.MISSING, Status.MET)
    items = [
        f"<li class='{each.status}'><span class='state'>{_STATES[each.status]}</span> {escape(each.name)}"
        f"<p>{escape(each.found)}</p><p class='soft'>Wanted: {escape(each.wanted)}</p></li>"
        for each in sorted(criteria, key=lambda each: order.index(each.status))
    ]
    return f"<ul class='criteria'>{''.join(items)}</ul>"


def _limits(report: Report) -> str:
    if not report.limits:
        return ""
    items = "".join(f"<li>{escape(limit)}</li>" for limit in report.limits)
    return _section("Not covered, and computed by on all the same", f"<ul class='plain'>{items}</ul>")


def _coverage(report: Report) -> str:
    evidence = report.evidence

    def shown(cell: Cell | None) -> str:
        if cell is None:
            return "- never"
        sign = "✓" if well_compared(evidence, cell) else "… too few:"
        return f"{sign} {evidence.calls_per_layer(cell):,.0f}"

    caption = "Calls per layer, by prefix length and requests in a batch; ✓ is well compared"
    return _grid(caption, {(cell.prefix_from, cell.batch_from): cell for cell in evidence.cells}, shown)


def _saving(report: Report) -> str:
    if not report.times:
        return "<p>Nothing was timed: only calls inside CUDA graphs are, on a GPU.</p>"
    times = {(each.cell.prefix_from, each.cell.batch_from): each for each in report.times}

    def shown(cell: Cell | None) -> str:
        each = times.get((cell.prefix_from, cell.batch_from)) if cell else None
        return f"{each.saved_ms:,.2f} ms ({each.stock_us:,.0f}, {each.kernel_us:,.0f} us)" if each else "-"

    caption = (
        "What a decode step would save. In brackets the device time of one layer's call, stock's and KDTree's, whose "
        "difference it is, times the layers"
    )
    return _grid(caption, {place: each.cell for place, each in times.items()}, shown)


def _grid(caption: str, cells: Mapping[tuple[int, int], Cell], shown: Callable[[Cell | None], str]) -> str:
    """A table of prefix lengths and batches. `cells` by (prefix from, batch from)."""
    if not cells:
        return "<p>No shape was counted yet.</p>"
    prefixes = {cell.prefix_from: ranges.prefix(cell.prefix_from, cell.prefix_below) for cell in cells.values()}
    batches = {cell.batch_from: ranges.batch(cell.batch_from, cell.batch_below) for cell in cells.values()}
    rows = [
        [prefixes[prefix], *(shown(cells.get((prefix, batch))) for batch in sorted(batches))]
        for prefix in sorted(prefixes)
    ]
    return _table(caption, ["prefix, tokens", *(f"batch {batches[batch]}" for batch in sorted(batches))], rows)


def _layers(report: Report) -> str:
    rows = [
        [
            f"{'draft ' if layer.model == 'draft' else ''}{layer.layer}",
            f"{layer.compare_calls:,}",
            ranges.difference(layer.worst_rel_l2),
            ranges.difference(layer.rel_l2),
            f"{layer.exceeded_calls:,}",
            f"{layer.nonfinite:,}",
        ]
        for layer in report.evidence.layers()
    ]
    head = ["layer", "compared", "worst rel. L2", "rel. L2", "beyond bound", "NaN or Inf"]
    table = _table("Each layer over all ranks", head, rows)
    return f"<details><summary>{len(rows)} layers</summary>{table}</details>"


def _setup(report: Report) -> str:
    values = report.evidence.setup.as_dict()
    items = "".join(
        f"<dt>{escape(label)}</dt><dd>{escape('unknown' if values[name] is None else str(values[name]))}</dd>"
        for name, label in LABELS.items()
    )
    return f"<dl>{items}</dl>"


def _runs(report: Report) -> str:
    rows = [
        [
            f"{when(entries[0].started_at)} to {when(max(entry.updated_at for entry in entries))}",
            entries[0].mode,
            entries[0].host,
            ", ".join(entry.rank for entry in entries),
            f"{sum(entry.compared for entry in entries):,}",
        ]
        for entries in runs(report.evidence)
    ]
    return _table("What is counted", ["UTC", "mode", "host", "ranks", "calls compared"], rows)


def _not_counted(report: Report) -> str:
    rows = [[each.name, each.why] for each in report.evidence.not_counted]
    return (
        _section("Not counted", _table("Other files of the folder", ["file", "why"], rows, words=True)) if rows else ""
    )


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    kind = " class='text'" if words else ""
    top = "".join(f"<th scope='col'{kind}>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    # Wider than a phone: it scrolls by itself, by keys too.
    name = f"aria-label='{escape(caption)}'"
    return (
        f"<p class='soft'>{escape(caption)}</p><div class='scroll' role='region' tabindex='0' {name}>"
        f"<table {name}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
