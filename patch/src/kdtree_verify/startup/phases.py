"""How far a rank is, as it goes: its state file says so from its first moment. Nothing of the kernel is imported."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from .. import jsonfile
from ..config import Mode
from ..reporting import state
from ..reporting.state import State, Verdict

logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """What a rank does until it is ready. Each lasts until the next begins."""

    STARTING = "starting"
    """The scheduler's own parts, torch.distributed, NCCL."""
    LOADING = "loading the model"
    """With off, which looks no closer."""
    WEIGHTS = "loading weights"
    DRAFT_WEIGHTS = "loading the draft's weights"
    CACHE = "sizing the KV cache"
    PROVING = "proving the kernel"
    GRAPHS = "capturing graphs"
    FINISHING = "finishing"
    READY = "ready"


class Phases:
    """Keeps the phases of this rank and writes its state file as they change, until it is armed.

    Nothing here ever raises: a rank that cannot tell how far it is serves all the same.

    Args:
        mode: What was asked for.
        directory: The state folder.
    """

    def __init__(self, mode: Mode, directory: Path):
        self._mode, self._directory = mode, directory
        self._entered: list[tuple[Phase, float]] = []
        self._path: Path | None = None
        self._write: Callable[[], None] = self._write_loading

    def enter(self, phase: Phase) -> None:
        """The phase begins now, unless it is under way."""
        if self._entered and self._entered[-1][0] is phase:
            return
        self._entered.append((phase, time.time()))
        try:
            self._write()
        except Exception as error:
            logger.debug("kdtree: the phase cannot be written: %r", error)

    def hand_over(self, path: Path, write: Callable[[], None] = lambda: None) -> None:
        """From now on the rank's state file is written by others: at `path`, and by `write` when a phase begins."""
        self._write = write
        if self._path is not None and self._path != path:
            # SGLang called this rank otherwise when it began; where that is another rank's name, that one has the file.
            with suppress(OSError, ValueError):
                if jsonfile.read(self._path, state.MOST_BYTES).get("pid") == os.getpid():
                    self._path.unlink()

    def fields(self) -> dict[str, Any]:
        """For the rank's state file: the phase, since when, and all so far with the time at which each began."""
        phase, since = self._entered[-1] if self._entered else (None, None)
        entered = [{"name": str(name), "since": at} for name, at in self._entered]
        return {"phase": phase and str(phase), "phase_since": since, "phases": entered}

    def _write_loading(self) -> None:
        identity = state.this_rank()
        self._path = state.rank_path(self._directory, identity)
        began = self._entered[0][1]
        document = state.rank_document(self._mode, identity, Verdict(State.LOADING))
        state.write(self._path, document | {"started_at": began, "state_since": began} | self.fields())
