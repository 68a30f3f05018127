"""Writes a rank's evidence while it serves: called at each of the reporter's looks, twice a second, on a thread of its
own, and makes no CUDA call."""

from __future__ import annotations

import atexit
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..reporting import state
from . import files, server, setup
from .history import History

logger = logging.getLogger(__name__)

# Seconds.
LOOK_EVERY = 5.0
WRITE_EVERY = 30.0
WAIT_AT_END = 5.0
"""For a write under way. The process ends without it then."""
QUIET_WRITE_EVERY = 10.0
"""Where calls have come and none came since the last look: a server that is stopped ends its ranks by SIGKILL, and
what the last requests added is on the disk then."""


class Follower:
    """The evidence file of one rank.

    Args:
        directory: Config.evidence_dir; made if it is not there.
        state_dir: Config.state_dir, where the launcher told about the server.
        rank: The rank's name.
        document: Makes the rank's document (report.document).
    """

    def __init__(self, directory: Path, state_dir: Path, rank: str, document: Callable[[], dict[str, Any]]):
        self._state_dir, self._document = state_dir, document
        self._started = time.time()
        self._server = server.of_this_process(state_dir)
        self._sizes = server.sizes()
        name, self._id = files.new_name(self._server.host, rank, self._started)
        self.path = directory / name
        self._history = History(self._started)
        self._lock = threading.Lock()
        self._last: dict[str, Any] = {}
        self._looked = self._written = float("-inf")
        self._changed = self._complained = False
        atexit.register(self.close)

    def __call__(self) -> None:
        """Looks and writes when it is time to."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked < LOOK_EVERY:
                return
            self._looked = now
            busy = self._look()
            if self._written == float("-inf") or (
                self._changed and now - self._written >= (WRITE_EVERY if busy else QUIET_WRITE_EVERY)
            ):
                self._write(now, ended=False)

    def close(self) -> None:
        """What is to be said at the process's end: all of it, where the folder does not hang."""
        if not self._lock.acquire(timeout=WAIT_AT_END):
            return
        try:
            if self._looked == float("-inf"):
                return  # it never served
            self._look()
            self._write(time.monotonic(), ended=True)
        finally:
            self._lock.release()

    def _look(self) -> bool:
        """Takes in the rank's document; returns whether there were new calls."""
        document = self._document()
        busy = self._history.look(document, time.time())
        # What else changes is state, reasons and counts of declined calls; the time of day always does.
        told = {name: value for name, value in document.items() if name != "updated_at"}
        self._changed |= told != {name: value for name, value in self._last.items() if name != "updated_at"}
        self._last = document
        return busy

    def _write(self, now: float, *, ended: bool) -> None:
        first = self._written == float("-inf")
        self._written = now
        try:
            state.replace(self.path, self._text(ended))
            self._changed = self._complained = False
            if first:
                logger.info("kdtree: what is measured is kept in %s, for kdtree report", self.path)
                files.prune(self.path.parent, self.path)
        except OSError as error:
            if not self._complained:
                logger.warning(
                    "kdtree: what is measured does not outlive this server, %s cannot be written: %s",
                    self.path.parent,
                    error.strerror,
                )
            self._complained = True

    def _text(self, ended: bool) -> str:
        while len(text := json.dumps(self._content(ended), separators=(",", ":"))) > files.FILE_BYTES:
            if len(self._history.points) <= 2:
                break  # bounded all the same: layers, cells and reasons are
            self._history.thin()
        return text + "\n"

    def _content(self, ended: bool) -> dict[str, Any]:
        history = self._history
        return {
            "schema": files.SCHEMA,
            "kind": files.KIND,
            "id": self._id,
            "server": self._server.as_dict(),
            "setup": setup.of_rank(self._last, self._server.model, self._sizes).as_dict(),
            "started_at": round(self._started, 1),
            "updated_at": round(time.time(), 1),
            "ended": ended,
            "active_seconds": round(history.active_seconds, 1),
            "rank": self._last,
            "layers": [list(key) for key in history.layers],
            "points": [point.as_dict() for point in history.points],
        }
