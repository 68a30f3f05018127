"""The report for a terminal."""

from __future__ import annotations

import time

from ..evidence.history import nan_last
from ..evidence.setup import Setup
from ..terminal import columns, printable
from . import ranges
from .document import Report, runs
from .judge import Status, Verdict, well_compared
from .merge import Merged

_MOST_NOT_COUNTED = 8
_MOST_LIMITS = 6
_WORST_LAYERS = 3


def text(report: Report) -> str:
    """All of it, without the history."""
    return "\n".join(printable(line).rstrip() for line in _lines(report)) + "\n"


def headline(report: Report) -> str:
    """The verdict and its reason, in one sentence."""
    missing = sum(criterion.status is Status.MISSING for criterion in report.criteria)
    failed = sum(criterion.status is Status.FAILED for criterion in report.criteria)
    if report.verdict is Verdict.JUSTIFIED:
        return "on is justified: every criterion is met, for what was compared"
    if report.verdict is Verdict.NO:
        return f"no: {_criteria(failed)} against it. Leave KDTREE_VERIFY at validate or off, and report this"
    return f"not yet: {_criteria(missing)} not met so far. Keep serving with KDTREE_VERIFY=validate"


def setup_line(setup: Setup) -> str:
    """What the verdict is about."""
    parts = [
        setup.model or "unknown model",
        f"{setup.device}" + (f" ({setup.compute_capability})" if setup.compute_capability else ""),
        f"TP {setup.tp_size}, {setup.heads} heads, {setup.draft_tokens} draft tokens",
        f"{setup.pool_dtype or 'unknown'} cache",
    ]
    return ", ".join(parts)


def versions_line(setup: Setup) -> str:
    library = f"{setup.library_kind} library {(setup.library or '?')[:12]}"
    cuda = f", CUDA {setup.cuda}" if setup.cuda else ""
    return f"KDTree {setup.kdtree_verify}, {library}, SGLang {setup.sglang}, torch {setup.torch}{cuda}"


def when(seconds: float) -> str:
    """A time of the epoch, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _lines(report: Report) -> list[str]:
    evidence = report.evidence
    lines = [headline(report), "", f"setup     {setup_line(evidence.setup)}"]
    lines += [f"versions  {versions_line(evidence.setup)}", f"evidence  {evidence_line(report)}", ""]
    # What is in the way comes first.
    order = (Status.FAILED, Status.MISSING, Status.MET)
    for each in sorted(report.criteria, key=lambda criterion: order.index(criterion.status)):
        lines.append(f"{each.status:9} {each.name:13} {each.found}")
        if each.status is not Status.MET:
            lines.append(f"{'':23} wanted: {each.wanted}")
    if report.limits:
        lines += ["", "not covered, and computed by on all the same:"]
        lines += _some([f"  {limit}" for limit in report.limits], _MOST_LIMITS)
    lines += _layer_lines(evidence) + _cell_lines(report)
    if evidence.not_counted:
        lines += ["", "not counted:"]
        lines += _some([f"  {each.name}: {each.why}" for each in reversed(evidence.not_counted)], _MOST_NOT_COUNTED)
    return lines


def evidence_line(report: Report) -> str:
    """How much there is, from when, and where."""
    evidence = report.evidence
    count = len(runs(evidence))
    first, last = evidence.entries[0].started_at, max(entry.updated_at for entry in evidence.entries)
    return (
        f"{evidence.compared:,} calls compared in {count} run{'s' if count != 1 else ''} of {len(evidence.ranks)} "
        f"rank{'s' if len(evidence.ranks) != 1 else ''}, {when(first)} to {when(last)} UTC, in {report.directory}"
    )


def _layer_lines(evidence: Merged) -> list[str]:
    layers = sorted(evidence.layers(), key=lambda layer: nan_last(layer.worst_rel_l2), reverse=True)[:_WORST_LAYERS]
    rows = [("worst layers", "worst rel. L2", "rel. L2", "compared", "beyond bound")]
    for layer in layers:
        name = ranges.layer(*layer.key)
        figures = (ranges.difference(layer.worst_rel_l2), ranges.difference(layer.rel_l2))
        rows.append((name, *figures, f"{layer.compare_calls:,}", f"{layer.exceeded_calls:,}"))
    return ["", *columns(rows)] if layers else []


def _cell_lines(report: Report) -> list[str]:
    evidence = report.evidence
    if not evidence.cells:
        return []
    times = {id(each.cell): each for each in report.times}
    rows = [("batch", "prefix", "calls per layer", "", "worst rel. L2", "stock", "kernel", "a step would save")]
    for cell in evidence.cells:
        timed = times.get(id(cell))
        shown = ("-", "-", "-")
        if timed:
            shown = (f"{timed.stock_us:.0f} us", f"{timed.kernel_us:.0f} us", f"{timed.saved_ms:.2f} ms")
        rows.append(
            (
                ranges.batch(cell.batch_from, cell.batch_below),
                ranges.prefix(cell.prefix_from, cell.prefix_below),
                f"{evidence.calls_per_layer(cell):,.0f}",
                "" if well_compared(evidence, cell) else "too few",
                ranges.difference(cell.worst_rel_l2),
                *shown,
            )
        )
    note = "times: device time of one layer's call; what a step would save is an estimate, a layer's times the layers"
    return ["", *columns(rows), note if report.times else "no times: only calls in CUDA graphs are timed"]


def _some(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"  and {len(lines) - most} more (--json lists them)"]


def _criteria(count: int) -> str:
    return f"{count} criterion is" if count == 1 else f"{count} criteria are"
