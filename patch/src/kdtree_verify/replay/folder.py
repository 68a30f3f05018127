"""The folder that captures lie in: its limits, and who may look into it. Nothing here imports torch."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "captures"
SUFFIX = ".safetensors"
UNFINISHED = ".part"
FOLDER_LIMIT = 1 << 30
"""Bytes of all captures of all ranks and runs together. Beyond it none is added, and none is removed: the first ones
tell most, and who looked at them removes them."""
_ABANDONED = 3600.0  # seconds after which an unfinished file is of a process that was killed


def paths(directory: Path) -> list[Path]:
    """The captures in the folder, the oldest first; none where it is not there or cannot be read."""
    with suppress(OSError):
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))
    return []


@contextmanager
def prepared(directory: Path) -> Iterator[int]:
    """The folder, made if it is not there, and its bytes in use; other ranks wait until it is left.

    Raises:
        OSError: It cannot be made or read.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks: two ranks may then exceed the limit by one file each
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _in_use(directory)
    finally:
        os.close(descriptor)


def _in_use(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            status = path.lstat()
            if path.suffix == UNFINISHED and status.st_mtime < time.time() - _ABANDONED:
                path.unlink()
            else:
                total += status.st_size
    return total
