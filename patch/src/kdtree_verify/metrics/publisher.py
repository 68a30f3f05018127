"""Writes a rank's document into prometheus_client's files.

Every series has its rank's labels, so each is written by one process. Gauges are `mostrecent`: one series without a pid
label, and where a folder outlives its server the newest value counts, not a dead process's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .catalogue import METRICS, RANK_LABELS, Document, Kind, Metric

logger = logging.getLogger(__name__)

PUBLISH_EVERY = 2.0
"""Seconds. Prometheus rarely asks more often than every 5."""
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_ROOM = 8 << 20
"""Bytes that must be free before a file is made or grows: prometheus_client writes by mmap, where a full disk kills."""


def followers(document: Callable[[], Document]) -> Sequence[Callable[[], None]]:
    """What the reporter is to call at each look: nothing where the server has no /metrics."""
    return [Publisher(document)] if enabled() else []


def enabled() -> bool:
    """Whether SGLang serves /metrics in multiprocess mode."""
    if not os.environ.get(FOLDER):
        return False
    try:
        from sglang.srt.runtime_context import get_observability

        return bool(get_observability().enable_metrics)
    except Exception:
        return False  # an SGLang without a published configuration, as in a notebook


class Publisher:
    """Writes a rank's document into prometheus_client's files; the first failure is told and is the last try.

    Args:
        document: Makes the rank's document.
        every: Seconds between two times.
    """

    def __init__(self, document: Callable[[], Document], every: float = PUBLISH_EVERY):
        self._document, self._every = document, every
        self._due = 0.0
        self._series: Series | None = None
        self._failed = False

    def __call__(self) -> None:
        if self._failed or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        try:
            if self._series is None:
                self._series = Series(Path(os.environ[FOLDER]))
            self._series.publish(self._document())
        except Exception as error:
            self._failed = True
            logger.warning("kdtree: no metrics of this rank on /metrics from now on: %r", error)


class Series:
    """The series of one process.

    Args:
        folder: PROMETHEUS_MULTIPROC_DIR.

    Raises:
        ImportError: There is no prometheus_client.
    """

    def __init__(self, folder: Path):
        from prometheus_client import CollectorRegistry, Counter, Gauge

        # A registry of our own: what is in the process's default one is SGLang's business. The files are shared.
        registry = CollectorRegistry()
        self._folder = folder
        self._families: dict[str, Any] = {}
        for metric in METRICS:
            labels = (*RANK_LABELS, *metric.labels)
            self._families[metric.name] = (
                Counter(metric.name, metric.help, labels, registry=registry)
                if metric.kind is Kind.COUNTER
                else Gauge(metric.name, metric.help, labels, registry=registry, multiprocess_mode="mostrecent")
            )
        self._published: dict[tuple[str, ...], float] = {}

    def publish(self, document: Document) -> None:
        """Brings every series to what the document says.

        Raises:
            OSError: The folder cannot be written, or has no room for a new series.
        """
        rank = tuple(str(document["rank"][name.removesuffix("_rank")]) for name in RANK_LABELS)
        values = [(metric, (*rank, *labels), value) for metric in METRICS for labels, value in metric.read(document)]
        new = any((metric.name, *labels) not in self._published for metric, labels, _ in values)
        if new:
            self._check_room()
        for metric, labels, value in values:
            self._bring(metric, labels, value)
        if new:
            self._reserve()

    def _bring(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        key = (metric.name, *labels)
        before = self._published.get(key)
        if value == before:
            return
        series = self._families[metric.name].labels(*labels)
        if metric.kind is Kind.GAUGE:
            series.set(value)
        elif value > (before or 0.0):
            series.inc(value - (before or 0.0))
        self._published[key] = value

    def _check_room(self) -> None:
        space = os.statvfs(self._folder)
        if space.f_bavail * space.f_frsize < _ROOM:
            raise OSError(f"{self._folder} has less than {_ROOM >> 20} MiB left")

    def _reserve(self) -> None:
        # The files are sparse. A page that the disk has no room for would kill the process at a later write.
        for path in self._folder.glob(f"*_{os.getpid()}.db"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
