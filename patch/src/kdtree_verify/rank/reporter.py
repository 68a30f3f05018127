"""The thread that looks at a rank's counters and tells: its state file, and lines in SGLang's log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..reporting import state
from . import report
from .rank import Rank
from .records import Model

logger = logging.getLogger(__name__)

# Seconds. Looking reads host memory and makes no CUDA call.
LOOK_EVERY = 0.5
WRITE_EVERY = 2.0
HEARTBEAT = 10.0


class Reporter:
    """Reports one rank until the process ends.

    Args:
        rank: What is reported.
        path: The rank's state file.
        document: Makes its content.
        interval: Seconds between two report lines.
        followers: What else is done at each look, on the reporter's thread; each sees to its own pace, and makes no
            CUDA call.
    """

    def __init__(
        self,
        rank: Rank,
        path: Path,
        document: Callable[[], dict[str, Any]],
        interval: float,
        followers: Sequence[Callable[[], None]] = (),
    ):
        self._rank, self._path, self._document, self._interval = rank, path, document, interval
        self._followers = list(followers)
        self._writing = threading.Lock()
        self._told: set[tuple[Model, int]] = set()
        self._complained = False
        rank.on_failure = self.write

    def start(self) -> None:
        self.write()
        threading.Thread(target=self._run, name="kdtree-reporter", daemon=True).start()

    def write(self) -> None:
        """Writes the state file now. A folder that cannot be written does not end the server: health shows it."""
        with self._writing:
            try:
                state.write(self._path, self._document())
                self._complained = False
            except OSError as error:
                if not self._complained:
                    logger.error("kdtree: the state file cannot be written: %s", error)
                self._complained = True

    def tell_out_of_bound(self) -> None:
        """Logs each layer that left its bound for the first time; later times are in the line at intervals."""
        for figures in self._rank.records.layers():
            key = figures.model, figures.layer
            if figures.exceeded_calls and key not in self._told:
                self._told.add(key)
                logger.error("%s", report.out_of_bound_line(figures, self._rank.mode))

    def _follow(self) -> None:
        # One that fails is told of once and left out: the others, and the report, go on.
        for follower in tuple(self._followers):
            try:
                follower()
            except Exception:
                self._followers.remove(follower)
                logger.exception("kdtree: a part of the report failed, and is left out from now on")

    def _run(self) -> None:
        seen: tuple[Any, ...] = ()
        told_line = ""
        written = told = time.monotonic()
        while True:
            time.sleep(LOOK_EVERY)
            now = time.monotonic()
            self._follow()
            try:
                found = self._rank.records.image(), self._rank.verdict()
                if found != seen:
                    self.tell_out_of_bound()
                if (found != seen and now - written >= WRITE_EVERY) or now - written >= HEARTBEAT:
                    self.write()
                    seen, written = found, now
                if now - told >= self._interval and (line := report.line(self._rank)) != told_line:
                    logger.info("%s", line)
                    told, told_line = now, line
            except Exception:
                # Reporting goes on, and must not flood the log.
                logger.exception("kdtree: the report failed")
                time.sleep(self._interval)
