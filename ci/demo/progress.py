"""Lines that tell what a long program is doing: one a step, and one that is rewritten while something is waited for."""

from __future__ import annotations

import re
import shutil
import sys
import time

_COLORS = re.compile(r"\033\[[0-9;]*m")
EVERY = 10.0  # seconds between two lines of a wait where nothing can be rewritten, in a log


class Progress:
    """Speaks on stderr; the results alone go to stdout."""

    def __init__(self, name: str = "demo") -> None:
        self._name = name
        self._started = time.monotonic()
        self._spoke = 0.0
        self._rewritable = sys.stderr.isatty()
        self._pending = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        self._end_wait()
        print(f"{self._name} {self.seconds:5.0f} s  {text}", file=sys.stderr, flush=True)
        self._spoke = time.monotonic()

    def tick(self, text: str) -> None:
        """Something is still being waited for."""
        line = f"{self._name} {self.seconds:5.0f} s    {' '.join(_COLORS.sub('', text).split())}"
        line = line[: shutil.get_terminal_size().columns - 1] if self._rewritable else line[:160]
        if self._rewritable:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            self._pending = True
        elif time.monotonic() - self._spoke >= EVERY:
            print(line, file=sys.stderr, flush=True)
            self._spoke = time.monotonic()

    def _end_wait(self) -> None:
        if self._pending:
            print("\r\033[K", end="", file=sys.stderr)
            self._pending = False
