"""Reads a JSON file from a folder that others may be able to write to: a pipe does not hold it up, nor does size."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any


def read(path: Path, most_bytes: int) -> Any:
    """What the file holds.

    Args:
        path: No link is followed.
        most_bytes: What is larger is refused.

    Raises:
        OSError: It cannot be opened or read.
        ValueError: It is no file, too large, or not JSON ("not JSON").
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a file")
        if found.st_size > most_bytes:
            raise ValueError(f"larger than any of ours: {found.st_size} bytes")
        try:
            return json.loads(file.read(most_bytes))
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None
