"""How the entrypoint refuses: one line that says what is wrong, what was found and what to do; and an exit code.

The codes are the project's documented ones, the same as kdtree_verify's, which cannot be imported here: its package
must not be needed to say that something is missing.
"""

from __future__ import annotations

EXIT_USAGE = 64
EXIT_DEVICE = 69


class Refusal(Exception):
    """Why the server does not start."""

    def __init__(self, code: int, what: str, found: str, fix: str) -> None:
        self.code = code
        super().__init__(f"kdtree: {what}: {found}. Fix: {fix}")
