"""What the doctor shows: a line for each finding, or a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..errors import ExitCode
from ..terminal import printable
from .finding import Finding, Status
from .run import Subject

SCHEMA = 1
_INDENT = " " * 19


def lines(finding: Finding) -> str:
    """The finding, and below it what to do."""
    fix = f"\n{_INDENT}Fix: {printable(finding.fix)}" if finding.fix else ""
    return f"{finding.status:7}  {finding.check:8}  {printable(finding.text)}{fix}"


def code(findings: Sequence[Finding]) -> ExitCode:
    """The first failure's."""
    return next((each.code for each in findings if each.status is Status.FAILED), ExitCode.OK)


def summary(findings: Sequence[Finding], mode: str) -> str:
    counts = Counter(each.status for each in findings)
    listed = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    verdict = "would start" if code(findings) is ExitCode.OK else "would not start"
    return f"KDTREE_VERIFY={mode} {verdict}: {listed}"


def document(about: Subject, findings: Sequence[Finding]) -> dict[str, Any]:
    """All of it: `gpus` in NVML's order (memory in MiB), `devices` in CUDA's (memory in bytes); null where not told."""
    survey = about.survey
    return {
        "schema": SCHEMA,
        "mode": about.mode,
        "driver": survey.driver if survey else None,
        "gpus": [asdict(gpu) for gpu in survey.gpus] if survey else None,
        "devices": [asdict(device) for device in about.devices] or None,
        "passed": code(findings) is ExitCode.OK,
        "code": int(code(findings)),
        "checks": [each.as_dict() for each in findings],
    }
