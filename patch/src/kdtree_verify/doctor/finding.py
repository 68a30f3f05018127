"""What a check says: its status, and for what is not well what to do. A failure carries its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..errors import ExitCode, KdtreeError
from ..terminal import printable


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line about one concern.

    Attributes:
        status: How it is.
        text: What was found; for a warning or a failure what is wrong, too; for what was skipped, why.
        fix: What to do about a warning or a failure.
        code: A failure's exit code, else OK.
        check: The check's name, which `run.examine` fills in.
        seconds: How long the check had taken when it said so; of the same source.
    """

    status: Status
    text: str
    fix: str = ""
    code: ExitCode = ExitCode.OK
    check: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """In the project's one form, for stderr."""
        warning = "warning: " if self.status is Status.WARNING else ""
        return printable(f"kdtree: {warning}{self.text}" + (f". Fix: {self.fix}" if self.fix else ""))

    def as_dict(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "status": str(self.status),
            "text": self.text,
            "fix": self.fix or None,
            "code": int(self.code),
            "seconds": round(self.seconds, 3),
        }


def ok(text: str) -> Finding:
    return Finding(Status.OK, text)


def warning(text: str, fix: str) -> Finding:
    return Finding(Status.WARNING, text, fix)


def skipped(reason: str) -> Finding:
    return Finding(Status.SKIPPED, reason)


def failed(error: KdtreeError) -> Finding:
    return Finding(Status.FAILED, f"{error.what}: {error.found}", error.fix, ExitCode(error.code))
