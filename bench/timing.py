"""Times on the GPU: medians of CUDA graph replays that take the inputs in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

MOST_CALLS = 24
FEWEST_REPLAYS = 3
MOST_US = 1e6
"""Of a median's replays together, as long as they are more than the fewest."""
Launch = Callable[[], object]


@dataclass(frozen=True)
class Time:
    """Microseconds of a call and how they were taken.

    Attributes:
        us: Median over `replays`.
        how: "graph": replay of a CUDA graph; "eager": launched from Python, where it could not be captured;
            "once": one launch, of a graph too where it could.
        calls: Calls of a replay.
        replays: How often.
    """

    us: float
    how: str
    calls: int
    replays: int


class GpuTimer:
    """Times launches on the current device.

    Args:
        replays: Replays that the median is of.
        replay_us: Calls are put into a graph until a replay takes about this long.
    """

    def __init__(self, replays: int, replay_us: float) -> None:
        self.replays, self.replay_us = replays, replay_us

    def once(self, launch: Launch) -> Time:
        """One launch, warm. Of a graph: Python may take longer to launch than the launch does."""
        run, _ = _replay(launch)
        run()
        return Time(self._event_us(run), "once", 1, 1)

    def median(self, launches: Sequence[Launch], refill: Callable[[], None] | None = None) -> Time:
        """The median time of a launch among `launches`, taken in turn; `refill` runs between capture and replay."""
        estimate = max(self.once(launches[0]).us, 1.0)
        calls = max(len(launches), min(MOST_CALLS, round(self.replay_us / estimate)), 1)
        sequence = [launches[i % len(launches)] for i in range(calls)]

        def all_of_them() -> None:
            for launch in sequence:
                launch()

        replay, how = _replay(all_of_them)
        if refill:
            refill()
        replay()
        replays = max(FEWEST_REPLAYS, min(self.replays, round(MOST_US / (estimate * calls))))
        times = [self._event_us(replay) / calls for _ in range(replays)]
        return Time(statistics.median(times), how, calls, replays)

    @staticmethod
    def _event_us(run: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3


def _replay(run: Launch) -> tuple[Launch, str]:
    """What replays a graph of what `run` launches, or `run` itself where that cannot be captured; which of them."""
    try:
        return _captured(run), "graph"
    except RuntimeError:
        torch.cuda.synchronize()
        return run, "eager"


def _captured(run: Launch) -> Launch:
    """The replay of a graph of what `run` launches. torch.cuda.graph would empty torch's memory caches each time."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay
