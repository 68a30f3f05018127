"""Why a registry could not be asked or told, in one line, and the exit codes."""

from __future__ import annotations

EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 64, 69, 130


class RegistryError(RuntimeError):
    """The registry refused, or said what cannot be; the text is one line: what, what was found, and what to do."""

    code = EXIT_FAILED


class BadName(RegistryError):
    """What was given is no name of an image, repository or tag."""

    code = EXIT_USAGE


class Unreachable(RegistryError):
    """Nothing answered, or the connection broke: again later it may work."""

    code = EXIT_UNAVAILABLE


class Missing(RegistryError):
    """The registry has no such image."""
