"""What was done, step by step: expected, found, seconds; as JSON, and to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import ContainerError

FAILURES = (ContainerError, OSError, subprocess.SubprocessError, ValueError, KeyError)
"""What a step may raise: its container, its server, or what that says, is not as it should be."""


@dataclass
class Step:
    """One step.

    Attributes:
        what: What was done.
        expected: What has to come of it.
        found: What came of it.
        ok: Whether that is as expected.
        seconds: How long it took.
    """

    what: str
    expected: str
    found: str = ""
    ok: bool = False
    seconds: float = 0.0

    def check(self, ok: bool, found: str) -> None:
        """Ends the step: it is as expected, or not."""
        self.ok, self.found = ok, found


@dataclass
class Record:
    """All steps, in the order in which they ended; `facts` says what they were done with."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ok(self) -> bool:
        return bool(self.steps) and all(step.ok for step in self.steps)

    @property
    def logs(self) -> Path:
        """The folder of logs."""
        return self.folder / "logs"

    @contextmanager
    def step(self, what: str, expected: str) -> Iterator[Step]:
        """A step, which its block checks; one that raises a failure has failed, and the next may be tried."""
        step, begun = Step(what, expected, "it was not done"), time.monotonic()
        try:
            yield step
        except FAILURES as error:
            step.check(False, f"{type(error).__name__}: {error}"[:2000])
        finally:
            step.seconds = round(time.monotonic() - begun, 1)
            with self._lock:
                self.steps.append(step)
                self._say(step)

    def _say(self, step: Step) -> None:
        at = time.monotonic() - self.begun
        print(f"{at:6.1f} s  {'ok' if step.ok else 'NOT OK':6}  {step.what}: {step.found[:400]}", file=sys.stderr)

    def keep(self, name: str, text: str) -> None:
        """Keeps a log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.logs / f"{name}.log").write_text(text)

    def write(self) -> Path:
        """Writes result.json; returns its path."""
        document = {
            "schema": 1,
            "ok": self.ok,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self.begun, 1),
            **self.facts,
            "steps": [asdict(step) for step in self.steps],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "result.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(part, path)
        return path

    def summary(self) -> str:
        """A line for each step, and for one that failed what was expected."""
        lines = []
        for step in self.steps:
            lines.append(f"{'ok    ' if step.ok else 'NOT OK'} {step.seconds:6.1f} s  {step.what}: {step.found}")
            if not step.ok:
                lines.append(f"                  expected: {step.expected}")
        good = sum(step.ok for step in self.steps)
        seconds = time.monotonic() - self.begun
        return "\n".join([*lines, f"{good} of {len(self.steps)} steps as expected, {seconds:.0f} s"])
