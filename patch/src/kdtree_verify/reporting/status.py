"""Reads the state folder: the launcher's server.json and each rank's file, and what is to be seen in them.

The standard library only, and nothing that imports torch: the container's health check runs this every few seconds.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import jsonfile
from ..config import PRODUCT_CAPABILITY, Mode
from ..finite import finite
from .state import MOST_BYTES, RANK_FILES, SCHEMA, SERVER_FILE, State

STALE_AFTER = 30.0
"""Seconds without a sign of life, three of the reporter's heartbeats. A rank with mode off writes only once."""

_Form = dict[str, tuple[type, ...]]
_MAYBE = type(None)
# What is read of a file without looking twice.
_SERVER_FORM: _Form = {
    "mode": (str,),
    "pid": (int,),
    "started_at": (int, float),
    "expected_ranks": (int, _MAYBE),
    "endpoint": (dict, _MAYBE),
}
_RANK_FORM: _Form = {
    "mode": (str,),
    "state": (str,),
    "pid": (int,),
    "started_at": (int, float),
    "state_since": (int, float),
    "phase": (str, _MAYBE),
    "phase_since": (int, float, _MAYBE),
    "updated_at": (int, float),
    "counters": (dict, _MAYBE),
    "layers": (list, _MAYBE),
    "library": (dict, _MAYBE),
    "device": (dict, _MAYBE),
    "versions": (dict, _MAYBE),
    "reason": (str, _MAYBE),
}
_LIBRARY_FORM: _Form = {"path": (str,), "sha256": (str,), "archs": (list, _MAYBE)}
_COUNTS_FORM: _Form = {
    **dict.fromkeys(("verify_calls", "kernel_calls", "out_of_range"), (int, _MAYBE)),
    "declined": (dict, _MAYBE),
}
_LAYER_FORM: _Form = {
    **dict.fromkeys(("compare_calls", "exceeded_calls", "nonfinite"), (int, _MAYBE)),
    **dict.fromkeys(("worst_rel_l2", "rel_l2", "max_abs"), (int, float, _MAYBE)),
}
_ENDPOINT_FORM: _Form = {"host": (str,), "port": (int,), "tls": (bool,)}
_TIMES = ("started_at", "state_since", "phase_since", "updated_at")
_LATEST = 1e11  # a time in milliseconds is none, and the calendar's functions end before it


@dataclass(frozen=True)
class Rank:
    """One rank's file.

    Attributes:
        document: What it holds; empty where it could not be read.
        error: Why it could not be read.
        alive: Whether its process is there.
        age: Seconds since it was written.
    """

    name: str
    document: dict[str, Any]
    error: str | None
    alive: bool
    age: float

    @property
    def mode(self) -> str | None:
        return self.document.get("mode")

    @property
    def state(self) -> str | None:
        return self.document.get("state")

    @property
    def stale(self) -> bool:
        """Alive by its pid, but it has stopped telling. A rank that loads tells when the next phase begins."""
        return self.mode != Mode.OFF and self.state != State.LOADING and self.age > STALE_AFTER

    @property
    def phase(self) -> str | None:
        """How far its start is; None before it says, and for a rank that is ready."""
        phase = self.document.get("phase")
        return None if phase == "ready" else phase

    def counter(self, name: str) -> int:
        return (self.document.get("counters") or {}).get(name) or 0

    @property
    def declined(self) -> dict[str, int]:
        return (self.document.get("counters") or {}).get("declined") or {}

    @property
    def layers(self) -> list[dict[str, Any]]:
        return self.document.get("layers") or []

    def layer_sum(self, name: str) -> int:
        return sum(layer.get(name) or 0 for layer in self.layers)


@dataclass(frozen=True)
class Snapshot:
    """A state folder at one moment. `server` is None where no launcher has written, or `error` says why not."""

    directory: Path
    server: dict[str, Any] | None
    server_alive: bool
    error: str | None
    ranks: tuple[Rank, ...]

    @property
    def mode(self) -> str | None:
        """The mode that was asked for."""
        return self.server.get("mode") if self.server else None

    @property
    def expected_ranks(self) -> int | None:
        return self.server.get("expected_ranks") if self.server else None

    def warnings(self) -> list[str]:
        """What does not make a server unhealthy, and should be known."""
        found = []
        for rank in self.ranks:
            device, library = rank.document.get("device") or {}, rank.document.get("library") or {}
            if library.get("kind") == "host":
                found.append(f"{rank.name} runs the host library (KDTREE_DEVICE=cpu): not for serving")
            capability = device.get("compute_capability")
            if rank.mode != Mode.OFF and capability not in (None, PRODUCT_CAPABILITY):
                found.append(f"{rank.name} runs on compute capability {capability}: for development, not for serving")
            if count := rank.counter("out_of_range"):
                found.append(f"{rank.name} was handed {count} indices out of range")
            if calls := rank.layer_sum("exceeded_calls"):
                found.append(f"{rank.name} left its bound in {calls} calls")
        if len({(rank.document.get("library") or {}).get("sha256") for rank in self.ranks}) > 1:
            found.append("the ranks run different libraries")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the files as they are, with what only a reader can tell; NaN and Inf become None."""
        ranks = [
            {"name": rank.name, "error": rank.error, "alive": rank.alive, "stale": rank.stale, "age": rank.age}
            | rank.document
            for rank in self.ranks
        ]
        return finite(
            {
                "directory": str(self.directory),
                "error": self.error,
                "server": self.server,
                "server_alive": self.server_alive,
                "ranks": ranks,
                "warnings": self.warnings(),
            }
        )


def read(directory: Path) -> Snapshot:
    """Reads what is there now; a file that cannot be read is part of the answer, not an error."""
    server, error = _load(directory / SERVER_FILE, _SERVER_FORM)
    ranks = []
    try:
        paths = sorted(directory.glob(RANK_FILES), key=_natural)
    except OSError:
        paths = []  # server.json cannot be read there either, and says why
    for path in paths:
        document, rank_error = _load(path, _RANK_FORM)
        document = document or {}
        ranks.append(
            Rank(
                name=path.stem.removeprefix("rank-"),
                document=document,
                error=rank_error,
                alive=_alive(document.get("pid")),
                # Written later than now, the clock was set back since: a rank that lives writes by the new one soon.
                age=abs(time.time() - float(document.get("updated_at") or 0.0)),
            )
        )
    server_alive = server is not None and _alive(server.get("pid"))
    return Snapshot(directory, server, server_alive, error, tuple(ranks))


def _load(path: Path, form: _Form) -> tuple[dict[str, Any] | None, str | None]:
    try:
        document = jsonfile.read(path, MOST_BYTES)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    except ValueError as error:
        return None, f"{path}: {error}"
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not _is_ours(document, form):
        return None, f"{path}: not of this version (schema {SCHEMA})"
    return document, None


def _is_ours(document: dict[str, Any], form: _Form) -> bool:
    """Whether all that is read of the file later is as it must be."""
    if not _fits(document, form) or not all(_is_time(document.get(name)) for name in _TIMES):
        return False
    counters = document.get("counters") or {}
    declined = counters.get("declined") or {}
    library, endpoint = document.get("library"), document.get("endpoint")
    return (
        (endpoint is None or _fits(endpoint, _ENDPOINT_FORM))
        and _fits(counters, _COUNTS_FORM)
        and all(isinstance(count, int) for count in declined.values())
        and (library is None or _fits(library, _LIBRARY_FORM))
        and all(isinstance(arch, str) for arch in (library or {}).get("archs") or [])
        and all(map(_is_layer, document.get("layers") or []))
    )


def _fits(document: dict[str, Any], form: _Form) -> bool:
    return all(isinstance(document.get(name), types) for name, types in form.items())


def _is_layer(layer: Any) -> bool:
    if not isinstance(layer, dict) or not _fits(layer, _LAYER_FORM):
        return False
    # A whole number that no float holds cannot be shown as one.
    return not any(isinstance(value, int) and abs(value) >> 63 for value in layer.values())


def _is_time(value: Any) -> bool:
    return value is None or (0 <= value < _LATEST and math.isfinite(value))


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # After the name, which may hold anything: a process that has ended and waits for its parent is dead.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return True


def _natural(path: Path) -> list[tuple[int, str]]:
    # dp0-pp0-tp10 after dp0-pp0-tp9.
    digits = "".join(c if c.isdecimal() else f" {c} " for c in path.stem).split()
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in digits]


SERVES = {Mode.OFF: {State.OFF}, Mode.VALIDATE: {State.ARMED, State.SERVING}, Mode.ON: {State.ARMED, State.SERVING}}
"""The states in which a rank does what the mode asks."""
