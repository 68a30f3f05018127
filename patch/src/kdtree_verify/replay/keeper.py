"""Keeps a rank's calls that left their bound, while it serves: from its box into files, a few of them."""

from __future__ import annotations

import logging
import secrets
import shlex
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from ..config import Config
from ..evidence import server
from ..native.library import Description
from . import file, folder, origin
from .capture import Capture
from .origin import Origin

logger = logging.getLogger(__name__)

# Seconds.
AGAIN_AFTER = 600.0
"""A layer that is kept already is kept once more only after this: others come first."""
PAUSE = 10.0
"""After a capture that was not kept. Taking one costs a copy of it."""


class Box(Protocol):
    """Where a rank holds the last call that left its bound."""

    def take(self) -> Capture | None:
        """What it holds, which frees it for the next; None where it holds nothing. Makes no CUDA call."""


class Keeper:
    """A follower of the reporter. It takes; files are written on a thread of their own, since a disk may be slow.

    Args:
        box: The rank's.
        directory: Where the files go: `captures` of Config.evidence_dir. Made when there is something to keep.
        origin: Of this process; `at` is set anew for each capture.
        most: Files of this process, at most.
    """

    def __init__(self, box: Box, directory: Path, origin: Origin, most: int):
        self._box, self._directory, self._origin, self._left = box, directory, origin, most
        self.kept = 0
        """Files that were written."""
        self._kept: dict[tuple[str, int], float] = {}
        self._not_before = float("-inf")
        self._writing: threading.Thread | None = None
        self._said: set[str] = set()

    def __call__(self) -> None:
        """Takes what the box holds, when it is time to."""
        now = time.monotonic()
        if self._left <= 0 or now < self._not_before or (self._writing is not None and self._writing.is_alive()):
            return
        capture = self._box.take()
        if capture is None:
            return
        if now - self._kept.get((capture.model, capture.layer), float("-inf")) < AGAIN_AFTER:
            self._not_before = now + PAUSE
            return
        self._writing = threading.Thread(target=self._keep, args=(capture,), name="kdtree-capture", daemon=True)
        self._writing.start()

    def join(self) -> None:
        """Waits until what was taken is written."""
        if self._writing is not None:
            self._writing.join()

    def _keep(self, capture: Capture) -> None:
        try:
            path = self._write(capture)
        except Exception as error:
            # Of whatever kind: serving goes on, and the next one may find the disk with room again.
            self._not_before = time.monotonic() + PAUSE
            self._say_once("failed", f"it cannot be written: {error}")
            return
        if path is None:
            self._not_before = time.monotonic() + PAUSE
            return
        self._left -= 1
        self.kept += 1
        self._kept[capture.model, capture.layer] = time.monotonic()
        logger.error(
            "kdtree %s: a call of %s layer %d is kept: relative L2 %.2e (bound %g). Who was right: kdtree replay %s",
            *(self._origin.mode, capture.model, capture.layer, capture.rel_l2, capture.bound, shlex.quote(str(path))),
        )

    def _write(self, capture: Capture) -> Path | None:
        """The capture's file; None where it has no room."""
        size = file.size(capture)
        if size > file.LARGEST_FILE:
            self._say_once("large", f"it takes {size >> 20} MiB, none takes more than {file.LARGEST_FILE >> 20}")
            return None
        made = replace(self._origin, at=time.time())
        with folder.prepared(self._directory) as in_use:
            if in_use + size > folder.FOLDER_LIMIT:
                limit = folder.FOLDER_LIMIT >> 20
                self._say_once("full", f"{in_use >> 20} of {limit} MiB are in use: remove what was looked at")
                return None
            path = self._directory / _name(capture, made)
            file.write(path, capture, made)
        return path

    def _say_once(self, what: str, why: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("kdtree: a call out of bound is not kept in %s: %s (said once)", self._directory, why)


def of_rank(box: Box, config: Config, rank: str, device: torch.device, library: Description) -> Keeper:
    """The keeper of this process's rank; asks CUDA for the device's name."""
    model = server.of_this_process(config.state_dir).model
    made = origin.now(str(config.mode), rank, model, device, library)
    return Keeper(box, config.evidence_dir / folder.NAME, made, config.captures)


def _name(capture: Capture, origin: Origin) -> str:
    # The last part is random: hosts that share a folder may have the same ranks.
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(origin.at))
    parts = (moment, origin.rank, str(capture.model), f"layer{capture.layer}", secrets.token_hex(3))
    return f"{'-'.join(parts)}{folder.SUFFIX}"
