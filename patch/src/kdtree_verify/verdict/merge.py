"""All runs of one setup taken together: sums of what was counted, the worst of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..evidence.history import largest
from ..evidence.read import Cell, Entry, Layer, Point, Unreadable, Yardstick
from ..evidence.setup import Setup

_MOST_POINTS = 160
_CLOCKS_DIFFER = 300.0  # seconds, between hosts that share a folder
LABELS = {
    "model": "model",
    "kdtree_verify": "KDTree",
    "sglang": "SGLang",
    "torch": "torch",
    "cuda": "CUDA",
    "library": "kernel library",
    "sources": "kernel sources",
    "library_kind": "kind of library",
    "device": "card",
    "compute_capability": "compute capability",
    "tp_size": "TP size",
    "pp_size": "PP size",
    "dp_size": "DP size",
    "heads": "heads",
    "draft_tokens": "draft tokens",
    "pool_dtype": "KV cache",
}
"""A setup's fields for people."""


@dataclass(frozen=True)
class NotCounted:
    """What lies in the folder and is no evidence for the present setup, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Rank:
    """One rank over all counted runs."""

    name: str
    pipeline: int
    layers: dict[tuple[str, int], Layer]
    verify_calls: int
    declined: dict[str, int]
    out_of_range: int
    active_seconds: float


@dataclass(frozen=True)
class Merged:
    """The evidence for one setup.

    Attributes:
        setup: The present one: that of the newest file.
        entries: What is counted, the oldest first.
        ranks: By name.
        cells: Over all ranks, in order of batch and prefix.
        yardstick: The worst that a rank measured; None where none did.
        bound: Of the pool's dtype; None where no call says which that is.
    """

    setup: Setup
    entries: tuple[Entry, ...]
    not_counted: tuple[NotCounted, ...]
    ranks: dict[str, Rank]
    cells: tuple[Cell, ...]
    yardstick: Yardstick | None
    bound: float | None

    @property
    def newest_run(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.run == self.entries[-1].run)

    @property
    def expected_ranks(self) -> int | None:
        """How many the server has on one host: its launcher's word, else what TP and PP come to; None: unknown.

        With DP only the launcher knows whether each replica is a group of ranks of its own.
        """
        told = [entry.expected_ranks for entry in self.entries if entry.expected_ranks is not None]
        if told:
            return max(told)
        sizes = self.setup.tp_size, self.setup.pp_size
        if None in sizes or self.setup.dp_size != 1:
            return None
        return math.prod(size for size in sizes if size is not None)

    @property
    def measured_ranks(self) -> int:
        """Ranks of the run that had most: where SGLang named none, each start's ranks have names of their own."""
        runs: dict[str, set[str]] = {}
        for entry in self.entries:
            runs.setdefault(entry.run, set()).add(entry.rank)
        return max(map(len, runs.values()), default=0)

    @property
    def ranks_without_yardstick(self) -> list[str]:
        measured = {entry.rank for entry in self.entries if entry.yardstick}
        return sorted(self.ranks.keys() - measured)

    @property
    def compared(self) -> int:
        """Calls compared, over all layers, ranks and runs."""
        return sum(entry.compared for entry in self.entries)

    @property
    def rank_layers(self) -> int:
        """Layers with records over all ranks together: what a cell's calls are divided by."""
        return sum(len(rank.layers) for rank in self.ranks.values())

    def calls_per_layer(self, cell: Cell) -> float:
        """The cell's calls, of one layer of one rank on average."""
        return cell.calls / self.rank_layers if self.rank_layers else 0.0

    def layers(self) -> list[Layer]:
        """Each layer over all ranks, target first."""
        found: dict[tuple[str, int], list[Layer]] = {}
        for rank in self.ranks.values():
            for key, layer in rank.layers.items():
                found.setdefault(key, []).append(layer)
        return [_layers(found[key]) for key in sorted(found, key=lambda key: (key[0] != "target", key))]

    def points(self) -> list[Point]:
        """The history of all ranks, in at most 160 intervals."""
        points = sorted((point for entry in self.entries for point in entry.points), key=lambda point: point.start)
        if not points:
            return []
        first, last = points[0].start, max(point.end for point in points)
        width = max((last - first) / _MOST_POINTS, 1.0)
        bins: dict[int, list[Point]] = {}
        for point in points:
            bins.setdefault(min(int((point.end - first) / width), _MOST_POINTS), []).append(point)
        return [_points(bins[index]) for index in sorted(bins)]


def merge(entries: Sequence[Entry], unreadable: Sequence[Unreadable], now: float) -> Merged | None:
    """The evidence for the setup of the newest entry; None where there is no entry.

    Args:
        now: Seconds since the epoch. What a wrong clock dates after it counts, but is not the newest: it would be for
            ever.
    """
    if not entries:
        return None
    entries = sorted(entries, key=lambda entry: (entry.started_at <= now + _CLOCKS_DIFFER, entry.started_at))
    newest = entries[-1]
    setup = _with_pool(newest.setup, entries)
    counted = [entry for entry in entries if not setup.differences(entry.setup)]
    other = [entry for entry in entries if setup.differences(entry.setup)]
    not_counted = [NotCounted(entry.name, _why(entry.setup, setup)) for entry in other]
    not_counted += [NotCounted(each.name, each.why) for each in unreadable]
    by_rank: dict[str, list[Entry]] = {}
    for entry in counted:
        by_rank.setdefault(entry.rank, []).append(entry)
    bounds = [entry.bounds[setup.pool_dtype] for entry in counted if setup.pool_dtype in entry.bounds]
    return Merged(
        setup=setup,
        entries=tuple(counted),
        not_counted=tuple(not_counted),
        ranks={name: _rank(name, by_rank[name]) for name in sorted(by_rank)},
        cells=tuple(_cells(cell for entry in counted for cell in entry.cells)),
        yardstick=_yardstick([entry.yardstick for entry in counted if entry.yardstick]),
        bound=min(bounds, default=None),
    )


def _with_pool(newest: Setup, entries: Sequence[Entry]) -> Setup:
    """The newest setup with its pool's dtype, if a run before it has seen one: a server that just started has not."""
    alike = [entry.setup for entry in entries if not newest.differences(entry.setup) and entry.setup.pool_dtype]
    return alike[-1] if newest.pool_dtype is None and alike else newest


def _why(theirs: Setup, ours: Setup) -> str:
    names = theirs.differences(ours)
    return "another " + ", ".join(
        f"{LABELS[name]} ({_shown(name, getattr(theirs, name))}, not {_shown(name, getattr(ours, name))})"
        for name in names
    )


def _shown(name: str, value: object) -> str:
    return str(value)[:12] if name in ("library", "sources") and value else str(value)


def _rank(name: str, entries: Sequence[Entry]) -> Rank:
    layers: dict[tuple[str, int], list[Layer]] = {}
    declined: dict[str, int] = {}
    for entry in entries:
        for layer in entry.layers:
            layers.setdefault(layer.key, []).append(layer)
        for reason, count in entry.declined.items():
            declined[reason] = declined.get(reason, 0) + count
    return Rank(
        name=name,
        pipeline=entries[-1].pipeline,
        layers={key: _layers(found) for key, found in layers.items()},
        verify_calls=sum(entry.verify_calls for entry in entries),
        declined=declined,
        out_of_range=sum(entry.out_of_range for entry in entries),
        active_seconds=sum(entry.active_seconds for entry in entries),
    )


def _layers(found: Sequence[Layer]) -> Layer:
    calls = sum(layer.compare_calls for layer in found)
    # The mean square over calls: each file has one over its own rows, and rows of one layer are alike in number.
    square = sum(layer.compare_calls * layer.rel_l2 * layer.rel_l2 for layer in found if layer.compare_calls)
    return Layer(
        model=found[0].model,
        layer=found[0].layer,
        kernel_calls=sum(layer.kernel_calls for layer in found),
        compare_calls=calls,
        out_of_range=sum(layer.out_of_range for layer in found),
        nonfinite=sum(layer.nonfinite for layer in found),
        exceeded_calls=sum(layer.exceeded_calls for layer in found),
        max_abs=largest([layer.max_abs for layer in found]),
        rel_l2=math.sqrt(square / calls) if calls else 0.0,
        worst_rel_l2=largest([layer.worst_rel_l2 for layer in found]),
    )


def _cells(cells: Iterable[Cell]) -> list[Cell]:
    found: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.batch_from, cell.prefix_from), []).append(cell)
    return [_cell(found[key]) for key in sorted(found)]


def _cell(found: Sequence[Cell]) -> Cell:
    calls = sum(cell.calls for cell in found)
    return Cell(
        prefix_from=found[0].prefix_from,
        prefix_below=found[0].prefix_below,
        batch_from=found[0].batch_from,
        batch_below=found[0].batch_below,
        calls=calls,
        exceeded_calls=sum(cell.exceeded_calls for cell in found),
        nonfinite=sum(cell.nonfinite for cell in found),
        worst_rel_l2=largest([cell.worst_rel_l2 for cell in found]),
        mean_rel_l2=sum(cell.mean_rel_l2 * cell.calls for cell in found if cell.calls) / calls if calls else 0.0,
        timed_calls=sum(cell.timed_calls for cell in found),
        stock_ns=sum(cell.stock_ns for cell in found),
        kernel_ns=sum(cell.kernel_ns for cell in found),
    )


def _points(found: Sequence[Point]) -> Point:
    calls = sum(point.calls for point in found)
    known = [(point.mean, point.calls) for point in found if point.mean is not None and point.calls]
    weight = sum(count for _, count in known)
    layers: dict[tuple[str, int], float] = {}
    for point in found:
        for key, value in point.layers.items():
            if not layers.get(key, -1.0) >= value:  # NaN is taken, and stays
                layers[key] = largest([layers.get(key), value])
    return Point(
        start=min(point.start for point in found),
        end=max(point.end for point in found),
        calls=calls,
        exceeded=sum(point.exceeded for point in found),
        worst=largest([point.worst for point in found]),
        mean=sum(mean * count for mean, count in known) / weight if weight else None,
        layers=layers,
    )


def _yardstick(found: Sequence[Yardstick]) -> Yardstick | None:
    if not found:
        return None
    kernel = largest([each.kernel_rel_l2 for each in found])
    return Yardstick(min(each.stock_rel_l2 for each in found), kernel, found[-1].case)
