"""Why a registry could not be asked or told, in one line, and the exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


class RegistryError(RuntimeError):
    """The registry refused, or said what cannot be; the text is one line: what, what was found, and what to do."""

    code = EXIT_FAILED


class BadName(RegistryError):
    """What was given is no name of an image, repository or tag."""

    code = os.EX_USAGE


class Unreachable(RegistryError):
    """Nothing answered, or the connection broke: again later it may work."""

    code = os.EX_UNAVAILABLE


class Missing(RegistryError):
    """The registry has no such image."""


def in_one_line(command: Callable[[], str]) -> int:
    """Prints what a command gives; what it cannot do is one line on stderr, and its exit code."""
    try:
        print(command())
    except RegistryError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
