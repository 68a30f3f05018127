"""The folder of evidence: names, forms, sizes, what is removed when it grows beyond its limits."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .. import jsonfile

SCHEMA = 1
KIND = "kdtree evidence"
PATTERN = "run-*.json"
MOST_FILES = 1024
MOST_BYTES = 128 << 20
"""Of all files together: a hundred runs of eight ranks and more."""
FILE_BYTES = 512 << 10
"""Of one file, however long its server runs: the points are thinned until it is less."""
_LEFT_BEHIND = 3600.0  # seconds after which an unfinished file is nobody's any more


def new_name(host: str, rank: str, started_at: float) -> tuple[str, str]:
    """(file name, id) of a rank's file. The id is random: hosts, pids and clocks may be the same twice."""
    identity = secrets.token_hex(6)
    start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started_at))
    parts = (re.sub(r"[^A-Za-z0-9.-]", "-", part)[:48] for part in (host, rank))
    return f"run-{start}-{'-'.join(parts)}-{identity}.json", identity


def paths(directory: Path) -> list[Path]:
    """The folder's files, the oldest first.

    Raises:
        OSError: It cannot be read.
    """
    return sorted(path for path in directory.iterdir() if path.match(PATTERN))


def prune(directory: Path, keep: Path) -> None:
    """Removes what lies beyond the limits, files without a compared call before others, the oldest first.

    A server that runs on writes its file anew. What cannot be removed, another user's for instance, stays.
    """
    for path in directory.glob(f".{PATTERN}.*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _LEFT_BEHIND:
                path.unlink()
    sizes = {path: size for path, size in _sizes(directory) if path != keep}
    count, total = len(sizes), sum(sizes.values())
    if count <= MOST_FILES and total <= MOST_BYTES:
        return
    for path in sorted(sizes, key=lambda path: (_says_something(path), path)):
        if count <= MOST_FILES and total <= MOST_BYTES:
            return
        with suppress(OSError):
            path.unlink()
            count, total = count - 1, total - sizes[path]


def _sizes(directory: Path) -> Iterator[tuple[Path, int]]:
    for path in paths(directory):
        with suppress(OSError):
            yield path, path.lstat().st_size


def _says_something(path: Path) -> bool:
    try:
        return bool(jsonfile.read(path, 4 * FILE_BYTES)["points"])
    except (OSError, ValueError, TypeError, KeyError):
        return False
