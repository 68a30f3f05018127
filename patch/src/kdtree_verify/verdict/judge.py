"""The criteria, each by itself, and the verdict that they come to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..config import PRODUCT_CAPABILITY
from ..errors import ExitCode
from ..evidence.history import largest, nan_last
from ..evidence.read import Cell
from ..evidence.setup import Setup
from ..reporting.state import State
from . import ranges
from . import thresholds as enough
from .merge import LABELS, Merged

_KNOWN = (
    *("model", "kdtree_verify", "sglang", "torch", "library", "sources", "device"),
    *("tp_size", "pp_size", "dp_size", "heads", "draft_tokens"),
)
"""Of a setup; what else may be unknown has a criterion of its own."""


class Verdict(StrEnum):
    JUSTIFIED = "on is justified"
    NOT_YET = "not yet"
    NO = "no"

    @property
    def code(self) -> ExitCode:
        return {Verdict.JUSTIFIED: ExitCode.OK, Verdict.NOT_YET: ExitCode.NOT_YET, Verdict.NO: ExitCode.NOT_JUSTIFIED}[
            self
        ]


class Status(StrEnum):
    MET = "met"
    MISSING = "missing"
    """More evidence, or other, may change it."""
    FAILED = "failed"
    """What was measured speaks against `on`."""


@dataclass(frozen=True)
class Criterion:
    """One thing that is asked, what was found, and what would do."""

    name: str
    status: Status
    found: str
    wanted: str


def verdict(criteria: Sequence[Criterion]) -> Verdict:
    found = {criterion.status for criterion in criteria}
    if Status.FAILED in found:
        return Verdict.NO
    return Verdict.NOT_YET if Status.MISSING in found or not criteria else Verdict.JUSTIFIED


def judge(merged: Merged, installed: Sequence[str]) -> list[Criterion]:
    """Every criterion.

    Args:
        merged: The evidence.
        installed: In what the installation here is another than the measured one (installed.differences).
    """
    return [
        _card(merged.setup),
        _installation(merged.setup, installed),
        _ranks(merged),
        _state(merged),
        _layers(merged),
        _calls(merged),
        _time(merged),
        _prefixes(merged),
        _shapes(merged),
        _declined(merged),
        _bound(merged),
        _finite(merged),
        _indices(merged),
        _float64(merged),
        _explained(merged),
    ]


def well_compared(merged: Merged, cell: Cell) -> bool:
    """Whether the cell has calls enough to speak for itself."""
    return merged.calls_per_layer(cell) >= enough.CALLS_PER_CELL


def _card(setup: Setup) -> Criterion:
    right = setup.library_kind == "cuda" and setup.compute_capability == PRODUCT_CAPABILITY
    if setup.library_kind == "cuda":
        found = f"measured on {setup.device}, compute capability {setup.compute_capability}"
    else:
        found = f"measured on {setup.device}, with the {setup.library_kind} library"
    wanted = f"the CUDA library on a card of compute capability {PRODUCT_CAPABILITY}"
    return Criterion("card", _when(right), found, wanted)


def _installation(setup: Setup, differences: Sequence[str]) -> Criterion:
    # What is not known may have been another in each run.
    unknown = [f"{LABELS[name]} is not known" for name in _KNOWN if getattr(setup, name) is None]
    found = "; ".join([*differences, *unknown])
    wanted = "what was measured is known, and is what is installed"
    return Criterion("installation", _when(not found), found or "nothing that is installed here is another", wanted)


def _ranks(merged: Merged) -> Criterion:
    expected, found = merged.expected_ranks, merged.measured_ranks
    text = f"{found} of {'an unknown number of' if expected is None else expected} ranks measured"
    return Criterion("ranks", _when(expected is not None and found >= expected > 0), text, "every rank of the server")


def _state(merged: Merged) -> Criterion:
    wanted = "every rank serving, or ready to"
    failed = [entry for entry in merged.entries if entry.state == State.FAILED]
    if failed:
        return Criterion("state", Status.FAILED, f"{failed[-1].rank} failed: {failed[-1].reason}", wanted)
    idle = [entry for entry in merged.newest_run if entry.state not in (State.SERVING, State.ARMED)]
    if idle:
        return Criterion("state", Status.MISSING, f"{idle[0].rank} is {idle[0].state}: {idle[0].reason}", wanted)
    return Criterion("state", Status.MET, "no rank failed or stands idle", wanted)


def _layers(merged: Merged) -> Criterion:
    wanted = "the same layers in every rank of a pipeline stage"
    counts = set()
    for rank in merged.ranks.values():
        stage = [set(other.layers) for other in merged.ranks.values() if other.pipeline == rank.pipeline]
        if missing := sorted(set().union(*stage) - set(rank.layers)):
            return Criterion("layers", Status.MISSING, f"{rank.name} lacks {ranges.layer(*missing[0])}", wanted)
        counts.add(len(rank.layers))
    if not merged.rank_layers:
        return Criterion("layers", Status.MISSING, "no verify call was made", wanted)
    return Criterion("layers", Status.MET, f"{' or '.join(map(str, sorted(counts)))} in each rank", wanted)


def _calls(merged: Merged) -> Criterion:
    wanted = f"{enough.CALLS_PER_LAYER:,} compared calls in each of the target's layers, in each rank"
    # A draft's layers do not decide the answers: what it proposes is verified.
    counts = [
        (layer.compare_calls, f"{ranges.layer(*key)} of {rank.name}")
        for rank in merged.ranks.values()
        for key, layer in rank.layers.items()
        if layer.model == "target"
    ]
    if not counts:
        return Criterion("calls", Status.MISSING, "none", wanted)
    fewest, where = min(counts)
    return Criterion("calls", _when(fewest >= enough.CALLS_PER_LAYER), f"{fewest:,} in {where}, the fewest", wanted)


def _time(merged: Merged) -> Criterion:
    seconds = min((rank.active_seconds for rank in merged.ranks.values()), default=0.0)
    wanted = f"{enough.ACTIVE_SECONDS / 60:.0f} minutes in which calls were compared"
    return Criterion("time", _when(seconds >= enough.ACTIVE_SECONDS), f"{seconds / 60:.0f} minutes", wanted)


def _prefixes(merged: Merged) -> Criterion:
    found = {cell.prefix_from for cell in merged.cells if well_compared(merged, cell)}
    listed = f"{len(found)}: from {', '.join(ranges.short(start) for start in sorted(found))} tokens on"
    wanted = f"{enough.PREFIX_RANGES} ranges of prefix length with {enough.CALLS_PER_CELL} calls per layer each"
    return Criterion("prefixes", _when(len(found) >= enough.PREFIX_RANGES), listed if found else "none", wanted)


def _shapes(merged: Merged) -> Criterion:
    # A call that is in no cell was compared in a shape that nobody knows.
    total = max(sum(cell.calls for cell in merged.cells), sum(layer.compare_calls for layer in merged.layers()))
    well = sum(cell.calls for cell in merged.cells if well_compared(merged, cell))
    share = well / total if total else 0.0
    wanted = f"{enough.COVERED_SHARE:.0%} in ranges of prefix and batch with {enough.CALLS_PER_CELL} calls per layer"
    return Criterion("shapes", _when(share >= enough.COVERED_SHARE), f"{_percent(share)} of the calls", wanted)


def _declined(merged: Merged) -> Criterion:
    wanted = f"at most {enough.DECLINED_SHARE:.1%} of the target's verify calls declined"
    worst, found, failed = 0.0, "none", False
    for rank in merged.ranks.values():
        own = {reason: count for reason, count in rank.declined.items() if count and not reason.startswith("draft:")}
        share = sum(own.values()) / max(rank.verify_calls, sum(own.values()), 1)
        failed = failed or "launch_failed" in own
        if own and share >= worst:
            worst = share
            found = f"{rank.name}: {', '.join(f'{reason} {count:,}' for reason, count in own.items())}"
    if failed:
        return Criterion("declined", Status.FAILED, found, "no call that the kernel failed to compute")
    return Criterion("declined", _when(worst <= enough.DECLINED_SHARE), found, wanted)


def _bound(merged: Merged) -> Criterion:
    layers = merged.layers()
    points = [point for entry in merged.entries for point in entry.points]
    beyond = max(
        sum(layer.exceeded_calls for layer in layers),
        sum(cell.exceeded_calls for cell in merged.cells),
        sum(entry.sampled_exceeded for entry in merged.entries),
        sum(point.exceeded for point in points),
    )
    # All of them tell of the same calls. Where they contradict each other, the worst of them counts.
    values = [layer.worst_rel_l2 for layer in layers] + [cell.worst_rel_l2 for cell in merged.cells]
    values += [point.worst for point in points]
    if merged.bound is None:
        return Criterion("bound", Status.FAILED if beyond else Status.MISSING, "no bound is known", "every call in it")
    wanted = f"no call further from stock than {merged.bound:g} (relative L2, {merged.setup.pool_dtype} cache)"
    if not values:
        return Criterion("bound", Status.MISSING, "nothing was compared", wanted)
    worst = largest(values)
    inside = beyond == 0 and worst <= merged.bound
    found = f"{beyond:,} calls beyond it, {ranges.difference(worst)} at worst"
    return Criterion("bound", Status.MET if inside else Status.FAILED, found, wanted)


def _finite(merged: Merged) -> Criterion:
    layers = merged.layers()
    count = max(sum(layer.nonfinite for layer in layers), sum(cell.nonfinite for cell in merged.cells))
    return Criterion("NaN or Inf", Status.FAILED if count else Status.MET, f"{count:,} values", "none")


def _indices(merged: Merged) -> Criterion:
    by_rank = sum(rank.out_of_range for rank in merged.ranks.values())
    count = max(by_rank, sum(layer.out_of_range for layer in merged.layers()))
    return Criterion("indices", Status.FAILED if count else Status.MET, f"{count:,} out of range", "none")


def _float64(merged: Merged) -> Criterion:
    wanted = f"the kernel at most {enough.KERNEL_OVER_STOCK:g} times as far from float64 as stock"
    found = merged.yardstick
    if found is None:
        return Criterion("float64", Status.MISSING, "not measured", wanted)
    missing = merged.ranks_without_yardstick
    near = found.kernel_rel_l2 <= enough.KERNEL_OVER_STOCK * found.stock_rel_l2
    kernel, stock = ranges.difference(found.kernel_rel_l2), ranges.difference(found.stock_rel_l2)
    text = f"kernel {kernel}, stock {stock}, on the self-test's {found.case}"
    if near and missing:
        return Criterion("float64", Status.MISSING, f"{text}; not measured in {missing[0]}", wanted)
    return Criterion("float64", Status.MET if near else Status.FAILED, text, wanted)


def _explained(merged: Merged) -> Criterion:
    limit = explained_limit(merged)
    layers = [(layer, "") for layer in merged.layers() if layer.compare_calls]
    # Over all ranks and runs a card of which one layer is off would be an average of many that are not.
    layers += [
        (layer, f" of {entry.rank} in {entry.name}")
        for entry in merged.entries
        for layer in entry.layers
        if layer.compare_calls >= enough.CALLS_PER_CELL and len(merged.entries) > 1
    ]
    if limit is None or not layers:
        return Criterion("explained", Status.MISSING, "not measured", "a difference that rounding explains")
    worst, where = max(layers, key=lambda found: nan_last(found[0].rel_l2))
    layer = f"{ranges.layer(*worst.key)}{where}"
    found = f"{ranges.difference(worst.rel_l2)} in {layer}, the layer that is furthest from stock"
    wanted = f"at most {ranges.difference(limit)}, {enough.EXPLAINED_FACTOR:g} times both errors against float64"
    return Criterion("explained", Status.MET if worst.rel_l2 <= limit else Status.FAILED, found, wanted)


def explained_limit(merged: Merged) -> float | None:
    """The largest difference of a layer that both kernels' rounding explains; None where that was not measured."""
    found = merged.yardstick
    return None if found is None else enough.EXPLAINED_FACTOR * (found.stock_rel_l2 + found.kernel_rel_l2)


def not_covered(merged: Merged) -> Iterator[str]:
    """What `on` would compute and was never, or hardly ever, compared."""
    cells = merged.cells
    if not cells:
        return
    longest, largest = _end([c.prefix_below for c in cells]), _end([c.batch_below for c in cells])
    if longest is not None:
        yield f"prefixes of {ranges.short(longest)} tokens and more"
    if largest is not None:
        yield f"batches of {largest} requests and more"
    for cell in cells:
        if not well_compared(merged, cell):
            calls = merged.calls_per_layer(cell)
            yield (
                f"prefixes of {ranges.prefix(cell.prefix_from, cell.prefix_below)} in batches of "
                f"{ranges.batch(cell.batch_from, cell.batch_below)}: {calls:.0f} calls per layer"
            )


def _end(ends: Sequence[int | None]) -> int | None:
    """The last of some ranges' ends; None where one is open."""
    return None if None in ends else max(end for end in ends if end is not None)


def _when(met: bool) -> Status:
    return Status.MET if met else Status.MISSING


def _percent(share: float) -> str:
    return f"{math.floor(share * 1000) / 10:.1f}%"  # 98.96% is not 99%
