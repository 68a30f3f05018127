"""How much of a model's weights a process has read: an estimate from /proc, which costs the process nothing.

safetensors maps its files: then what counts are the files that are mapped, by half, and those that were. Other loaders
read: then the bytes that the process asked for, or that disks read for it, whichever is more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ..doctor import model
from ..doctor.arguments import Plan


class Loading:
    """Follows the load of the plan's model by one process.

    Args:
        plan: The model that is loaded.
        env: The environment: where models are kept.
    """

    def __init__(self, plan: Plan, env: Mapping[str, str]):
        self._plan, self._env = plan, env
        self._weights = model.Weights(None, "not looked at yet")
        self._reading: Reading | None = None
        self._read = 0

    def look(self, pid: int) -> None:
        """To be called often while the process loads: what is missed between two calls does not count."""
        if self._reading is None and self._known():
            self._reading = Reading(pid, self._weights.files)
        if self._reading is not None:
            self._read = max(self._read, self._reading.look())

    def size(self) -> str:
        """The weights' size, or why it is unknown."""
        return _bytes(self._weights.size) if self._known() else f"of unknown size: {self._weights.reason}"

    def share(self) -> str:
        """How much has been read."""
        if not self._known():
            return f"of unknown size: {self._weights.reason}"
        size = max(self._weights.size or 0, 1)
        # Nobody knows it to the percent, and only the next phase says that it is done.
        percent = min(100 * self._read // size, 99)
        return f"about {percent}% of {_bytes(size)} read"

    def _known(self) -> bool:
        if self._weights.size is None:  # a download may have ended since
            self._weights = model.weights(self._plan, self._env)
        return self._weights.size is not None


class Reading:
    """What one process reads of some files, from now on.

    Args:
        pid: The process.
        files: Paths of the files.
    """

    def __init__(self, pid: int, files: Iterable[Path]):
        self._pid = pid
        # As /proc/PID/maps names them: Hugging Face's cache holds links.
        self._sizes = {os.path.realpath(file): file.stat().st_size for file in files}
        self._mapped: set[str] = set()
        self._left: set[str] = set()
        self._before = self._counters()

    def look(self) -> int:
        """Bytes read so far, about; never more than the files have."""
        now = self._mapped_now()
        self._left |= self._mapped - now
        self._mapped |= now
        mapped = sum(self._sizes[file] // (1 if file in self._left else 2) for file in self._mapped)
        read = max(after - before for after, before in zip(self._counters(), self._before, strict=True))
        return min(max(mapped, read), sum(self._sizes.values()))

    def _mapped_now(self) -> set[str]:
        with suppress(OSError):
            maps = Path(f"/proc/{self._pid}/maps").read_text(encoding="utf-8", errors="surrogateescape")
            return {line.split(maxsplit=5)[-1] for line in maps.splitlines()} & self._sizes.keys()
        return set()

    def _counters(self) -> tuple[int, int]:
        """Bytes that the process has asked for, and that disks have read for it."""
        with suppress(OSError, ValueError, KeyError):
            lines = Path(f"/proc/{self._pid}/io").read_text(encoding="ascii").splitlines()
            figures = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            return figures["rchar"], figures["read_bytes"]
        return 0, 0


def _bytes(count: int | None) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if (count or 0) >= size:
            return f"{(count or 0) / size:.1f} {unit}"
    return f"{count or 0} B"
