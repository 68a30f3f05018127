"""What ends this program early."""

from __future__ import annotations

EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 64, 69, 130


class ContainerError(Exception):
    """Why it cannot go on: one line, with what was found and, where there is one, a fix."""


class Unavailable(ContainerError):
    """This machine, or what was carried to it, is not enough; nothing was started."""
