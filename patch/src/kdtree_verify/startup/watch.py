"""The launcher's thread that tells how far the start is, until the server answers.

It reads what the ranks write and what /proc says of them: nothing of theirs is touched, and nothing waits for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..doctor.arguments import Plan
from ..reporting import health, status
from ..reporting.state import State
from ..reporting.status import Rank, Snapshot
from . import clock
from .clock import span
from .phases import Phase
from .weights import Loading

LOOK_EVERY = 0.5
ASK_EVERY = 2.0
"""Seconds between two questions to the HTTP server, once every rank is ready."""
REPEAT_EVERY = 30.0
"""Seconds without a line, at most."""
WAIT_FOR_FIRST = 10.0
"""Seconds in which the ranks that start together are expected to report, in any order."""
ASK_FOR = 600.0
"""Seconds after which a server that does not answer is left alone: it may speak another protocol."""

_LOADS = (Phase.LOADING, Phase.WEIGHTS)
_ORDER = list(Phase)
_NOT_STARTED = "no rank has started yet: SGLang imports its parts, and reads or downloads the model's configuration"


def say(text: str) -> None:
    print(f"kdtree: {text}", file=sys.stderr, flush=True)


class Watch:
    """Tells of one server's start.

    Args:
        directory: The state folder.
        plan: What is known of the server's arguments: the model that it loads.
        env: The environment.
        began: When the start began, in time.time()'s seconds.
        every: Seconds after which what lasts is told again.
        tell: Where a line goes.
    """

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        env: Mapping[str, str],
        began: float,
        every: float = REPEAT_EVERY,
        tell: Callable[[str], None] = say,
    ):
        self._directory, self._began, self._every, self._tell = directory, began, every, tell
        self._loading = Loading(plan, env)
        self._told: list[dict[str, Any]] = []
        self._spoke = time.monotonic()
        self._announced = self._stopped = False
        self._seen_since: float | None = None
        self._ready_since: float | None = None

    def start(self) -> None:
        """Watches on a thread of its own, which ends with the start or with the process."""
        threading.Thread(target=self._run, name="kdtree-startup", daemon=True).start()

    def stop(self) -> None:
        """Tells no more."""
        self._stopped = True

    def _run(self) -> None:
        try:
            while not self._stopped and not self.look():
                time.sleep(LOOK_EVERY if self._ready_since is None else ASK_EVERY)
        except Exception as error:  # the server is left alone by who cannot tell of it
            self._tell(f"how far the start is cannot be told: {error!r}")

    def look(self) -> bool:
        """Tells what is new, or again what lasts. True when there is nothing left to tell."""
        snapshot = status.read(self._directory)
        ranks = [rank for rank in snapshot.ranks if rank.document]
        if snapshot.server is None:
            if not self._announced and time.monotonic() - self._spoke >= self._every:
                self._line("SGLang is still being imported")
            return self._announced  # its folder is gone
        self._announced = True
        if any(rank.state == State.FAILED for rank in ranks):
            return True  # it says so itself
        if self._has_leader(snapshot, ranks):
            self._tell_new(ranks[0])
            if _phase(ranks[0]) in _LOADS:
                self._loading.look(int(ranks[0].document["pid"]))
        if self._ready_since is None and _all_ready(snapshot, ranks):
            self._ready_since = time.monotonic()
        if self._ready_since is not None:
            if not health.own_endpoint_problems(snapshot, timeout=ASK_EVERY):
                took = clock.minutes(time.time() - self._began)
                self._line(
                    f"ready after {took}: HTTP answers, {_many(ranks)}, mode {snapshot.mode} ({_spent(ranks[0])})"
                )
                return True
            if time.monotonic() - self._ready_since > ASK_FOR:
                return True
        if time.monotonic() - self._spoke >= self._every:
            self._tell_again(snapshot, ranks)
        return False

    def _has_leader(self, snapshot: Snapshot, ranks: list[Rank]) -> bool:
        """Whether the first rank that reports is the first that will, or the one to do with."""
        if ranks and self._seen_since is None:
            self._seen_since = time.monotonic()
        late = self._seen_since is not None and time.monotonic() - self._seen_since > WAIT_FOR_FIRST
        return bool(ranks) and (late or len(ranks) >= (snapshot.expected_ranks or 1))

    def _tell_new(self, leader: Rank) -> None:
        """The phases of the first rank that were not told yet."""
        for entered in (leader.document.get("phases") or [])[len(self._told) :]:
            before = self._told[-1] if self._told else None
            took = f" ({before['name']} took {span(entered['since'] - before['since'])})" if before else ""
            size = f", {self._loading.size()}" if entered["name"] in _LOADS else ""
            self._line(f"{leader.name}: {entered['name']}{size}{took}", at=entered["since"])
            self._told.append(entered)

    def _tell_again(self, snapshot: Snapshot, ranks: list[Rank]) -> None:
        if not ranks:
            self._line(_NOT_STARTED)
            return
        if self._ready_since is not None:
            self._line("every rank is ready, HTTP does not answer yet: SGLang warms up")
            return
        leader = ranks[0]
        if _phase(leader) != Phase.READY:
            share = f", {self._loading.share()}" if _phase(leader) in _LOADS else ""
            self._line(f"{_lasting(leader)}{share}")
        for rank in ranks[1:]:
            # The others only where they are behind.
            if _step(rank) < _step(leader):
                self._line(f"{_lasting(rank)}, behind {leader.name}")
        missing = (snapshot.expected_ranks or len(ranks)) - len(ranks)
        if missing > 0:
            self._line(f"{missing} of {snapshot.expected_ranks} ranks have not started yet")

    def _line(self, text: str, at: float | None = None) -> None:
        self._spoke = time.monotonic()
        self._tell(f"[{clock.minutes((at or time.time()) - self._began)}] {text}")


def _all_ready(snapshot: Snapshot, ranks: list[Rank]) -> bool:
    return len(ranks) >= (snapshot.expected_ranks or 1) and all(_phase(rank) == Phase.READY for rank in ranks)


def _phase(rank: Rank) -> str | None:
    return rank.document.get("phase")


def _step(rank: Rank) -> int:
    phase = _phase(rank)
    return _ORDER.index(Phase(phase)) if phase in _ORDER else -1


def _lasting(rank: Rank) -> str:
    since = rank.document.get("phase_since") or rank.document["started_at"]
    return f"{rank.name}: {_phase(rank)} for {span(time.time() - since)}"


def _many(ranks: list[Rank]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > 1 else "1 rank"


def _spent(leader: Rank) -> str:
    """What the first rank spent its time on."""
    spent: dict[str, float] = {}
    for phase, after in pairwise(leader.document.get("phases") or []):
        spent[phase["name"]] = spent.get(phase["name"], 0.0) + after["since"] - phase["since"]
    return ", ".join(f"{name} {span(seconds)}" for name, seconds in spent.items())
