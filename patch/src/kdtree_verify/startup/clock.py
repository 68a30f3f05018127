"""How long a start takes: when it began, and spans of time for people."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


def process_start() -> float:
    """When this process started, as time.time() tells it. exec keeps it: in the image, when the entrypoint began."""
    with suppress(OSError, ValueError, IndexError):
        # After the name, which may hold anything.
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - since_boot
    return time.time()


def minutes(seconds: float) -> str:
    """2:03, and 1:02:03 from an hour on."""
    whole, rest = divmod(max(int(seconds), 0), 60)
    hours, whole = divmod(whole, 60)
    return f"{hours}:{whole:02}:{rest:02}" if hours else f"{whole}:{rest:02}"


def span(seconds: float) -> str:
    """0.4s, 42s, 2:03."""
    return f"{max(seconds, 0.0):.1f}s" if seconds < 10 else f"{seconds:.0f}s" if seconds < 100 else minutes(seconds)
