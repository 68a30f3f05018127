"""Programs that a step runs: what they say is kept, and none outlives an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .site import ROOT

ENDING_SECONDS = 30.0
NO_PROGRAM = 127
"""As a shell has it."""
TIMED_OUT = 124
"""As timeout(1) has it."""


@dataclass(frozen=True)
class Ran:
    """A program that has ended: its code and what it said; of what was watched, the last lines of both streams."""

    code: int
    output: str
    error: str = ""

    @property
    def last(self) -> str:
        """The last line that it said, of its errors where there are any."""
        lines = [line.strip() for line in (self.error.strip() or self.output.strip()).splitlines() if line.strip()]
        return lines[-1] if lines else f"status {self.code}, without a word"


def run(*command: str | Path, timeout: float = 120.0) -> Ran:
    """Runs a program silently."""
    try:
        with _started(command, stderr=subprocess.PIPE) as process:
            output, error = process.communicate(timeout=timeout)
    except FileNotFoundError:
        return Ran(NO_PROGRAM, "", f"no {command[0]} on PATH")
    except subprocess.TimeoutExpired:
        return Ran(TIMED_OUT, "", f"no answer in {timeout:.0f} s")
    return Ran(process.returncode, output, error)


def watch(*command: str | Path, kept: int = 40) -> Ran:
    """Runs a program that takes long: what it says goes to stderr as it comes, and its last lines are kept."""
    lines: deque[str] = deque(maxlen=kept)
    with _started(command, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            sys.stderr.write(line)
            lines.append(line)
    return Ran(process.returncode, "".join(lines))


@contextmanager
def _started(command: tuple[str | Path, ...], **options: Any) -> Iterator[subprocess.Popen[str]]:
    # A group of its own: what a build starts is ended with it, and not by the terminal while it is cleaned up.
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True, **options
    )
    try:
        yield process
        process.wait()
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
            return
