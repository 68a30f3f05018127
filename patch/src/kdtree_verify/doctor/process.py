"""A program in a process of its own, with a time limit that holds even where the driver lets nothing end it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

# How long a killed process may take to be gone. One that waits inside the driver is not: it is left behind.
_GONE_AFTER = 2.0


@dataclass(frozen=True)
class Ended:
    """What a program said and how it ended.

    Attributes:
        code: Its exit code, negative for a signal; None where the limit ended it.
        output: Its stdout, also what it said before it was killed.
        errors: Its stderr.
    """

    code: int | None
    output: str
    errors: str

    def how(self, limit: float) -> str:
        """In words, with the last line that it left on stderr."""
        last = self.errors.strip().rpartition("\n")[2]
        if self.code is None:
            words = f"no end within {limit:g} s"
        elif self.code < 0:
            words = f"killed by {signal.Signals(-self.code).name}"
        else:
            words = f"exit code {self.code}"
        return f"{words}: {last}" if last else words


def run(command: Sequence[str], limit: float) -> Ended:
    """Runs a program to its end, or for `limit` seconds; then it is killed with all that it has started.

    Raises:
        OSError: It cannot be started.
    """
    return run_all([command], limit)[0]


def run_all(commands: Sequence[Sequence[str]], limit: float) -> list[Ended]:
    """The same for programs that run side by side, within one limit; one that fails ends the wait for the others."""
    files = [(os.memfd_create("stdout"), os.memfd_create("stderr")) for _ in commands]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, (out, err) in zip(commands, files, strict=True):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
            started.append(process)
        _wait(started, time.monotonic() + limit)
        ended = [process.returncode for process in started]
    finally:
        for process in started:
            _end(process)
        texts = [(_content(out), _content(err)) for out, err in files]
    return [Ended(code, *text) for code, text in zip(ended, texts, strict=True)]


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> None:
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes) or any(codes):
            return
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_AFTER)


def _content(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")
