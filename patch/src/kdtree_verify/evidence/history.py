"""What a rank measured over time, in as many points as fit a file: old ones are merged, none is dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

MOST_POINTS = 128
FIRST_INTERVAL = 60.0
"""Seconds that a point spans at least, to begin with; twice as many each time that points are merged."""

LONGEST_LOOK = 60.0
"""Seconds between two looks, at most, that count as active: beyond it the clock was set, and nobody served."""

_Key = tuple[str, int]


@dataclass
class Point:
    """One interval.

    Attributes:
        start, end: Seconds since the epoch.
        calls, exceeded: Calls compared and those beyond their bound, summed over the layers.
        worst: The largest relative L2 difference that was seen: one that is a layer's largest so far, or was a layer's
            last when looked at, every few seconds. A call in between that was neither is not in it.
        mean: Of all calls of the interval; None where it is not known.
        layers: `worst` for each of History.layers, None where the layer made no call.
    """

    start: float
    end: float
    calls: int
    exceeded: int
    worst: float
    mean: float | None
    layers: list[float | None]

    def merged(self, later: Point) -> Point:
        mean = None
        if self.mean is not None and later.mean is not None:
            mean = (self.mean * self.calls + later.mean * later.calls) / (self.calls + later.calls)
        return Point(
            self.start,
            later.end,
            self.calls + later.calls,
            self.exceeded + later.exceeded,
            largest([self.worst, later.worst]),
            mean,
            [largest(pair) for pair in zip_longest(self.layers, later.layers)],
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "start": round(self.start, 1),
            "end": round(self.end, 1),
            "calls": self.calls,
            "exceeded": self.exceeded,
            "worst": _short(self.worst),
            "mean": _short(self.mean),
            "layers": [_short(value) for value in self.layers],
        }


def nan_last(value: float) -> float:
    """A key that puts NaN above every number."""
    return math.inf if math.isnan(value) else value


def largest(values: Sequence[float | None]) -> Any:
    """The largest of those that are known, NaN above all; None where none is."""
    return max((value for value in values if value is not None), key=nan_last, default=None)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


@dataclass
class _Seen:
    """What a rank's document said when it was last looked at."""

    calls: dict[_Key, int] = field(default_factory=dict)
    worst: dict[_Key, float] = field(default_factory=dict)
    exceeded: int = 0
    in_cells: int = 0
    sum_rel_l2: float = 0.0


class History:
    """The points of one rank. Give `look` its document every few seconds.

    Attributes:
        layers: (model, layer) that each place of a point's `layers` stands for.
        active_seconds: How long calls were compared: the time between looks in which there were new ones.
    """

    def __init__(self, now: float):
        self.layers: list[_Key] = []
        self.active_seconds = 0.0
        self._points: list[Point] = []
        self._open: Point | None = None
        self._interval = FIRST_INTERVAL
        self._looked = now
        self._seen = _Seen()

    @property
    def points(self) -> list[Point]:
        """All of them, the unfinished one last."""
        return [*self._points, *([self._open] if self._open else [])]

    def look(self, document: Mapping[str, Any], now: float) -> bool:
        """Takes in what has happened since the last look, which may be nothing; returns whether it was something."""
        since, before, found = self._looked, self._seen, _read(document)
        self._looked, self._seen = now, found
        calls = sum(found.calls.values()) - sum(before.calls.values())
        if calls <= 0:
            return False
        self.active_seconds += min(max(0.0, now - since), LONGEST_LOOK)
        self.layers += [key for key in found.calls if key not in self.layers]
        last = {_key(layer): layer["last_rel_l2"] for layer in document["layers"]}
        worst: list[float | None] = []
        for key in self.layers:
            if found.calls.get(key, 0) == before.calls.get(key, 0):
                worst.append(None)
            elif found.worst[key] != before.worst.get(key, 0.0):
                worst.append(found.worst[key])
            else:
                worst.append(last[key])
        in_cells = found.in_cells - before.in_cells
        mean = (found.sum_rel_l2 - before.sum_rel_l2) / in_cells if in_cells else None
        point = Point(since, now, calls, found.exceeded - before.exceeded, largest(worst) or 0.0, mean, worst)
        self._open = self._open.merged(point) if self._open else point
        if self._open.end - self._open.start >= self._interval:
            self._points.append(self._open)
            self._open = None
            if len(self._points) >= MOST_POINTS:
                self.thin()
        return True

    def thin(self) -> None:
        """Halves the number of points."""
        merged = [a.merged(b) for a, b in zip(self._points[::2], self._points[1::2], strict=False)]
        self._points = [*merged, *self._points[2 * len(merged) :]]
        self._interval *= 2


def _read(document: Mapping[str, Any]) -> _Seen:
    layers, cells = document.get("layers") or [], document.get("shapes") or []
    return _Seen(
        calls={_key(layer): layer["compare_calls"] for layer in layers},
        worst={_key(layer): layer["worst_rel_l2"] for layer in layers},
        exceeded=sum(layer["exceeded_calls"] for layer in layers),
        in_cells=sum(cell["calls"] for cell in cells),
        sum_rel_l2=sum(cell["mean_rel_l2"] * cell["calls"] for cell in cells),
    )


def _key(layer: Mapping[str, Any]) -> _Key:
    return layer["model"], layer["layer"]
