"""What a self-test found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..errors import SelftestFailed

Mode = Literal["eager", "graph"]

FIX = "do not serve with this library here: set KDTREE_VERIFY=off, and build the library for this GPU"


@dataclass(frozen=True)
class CaseResult:
    """One shape, variant and way of calling.

    Attributes:
        error, bound: Of the element that came closest to its bound, or went furthest beyond it.
        problem: What is wrong; None where nothing is.
    """

    shape: str
    variant: int
    variant_name: str
    mode: Mode
    error: float
    bound: float
    problem: str | None

    def __str__(self) -> str:
        verdict = self.problem or f"error {self.error:.2g}, bound {self.bound:.2g}"
        return f"shape {self.shape}, variant {self.variant} ({self.variant_name}), {self.mode}: {verdict}"


@dataclass(frozen=True)
class SelftestReport:
    """What was proved, on which device, with which library. `seconds` is wall time by phase."""

    device: str
    device_name: str
    library: str
    sha256: str
    num_heads: int
    max_draft_tokens: int
    cases: tuple[CaseResult, ...]
    seconds: dict[str, float]

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        return tuple(case for case in self.cases if case.problem)

    @property
    def worst(self) -> CaseResult:
        """The case that came closest to its bound, or went furthest beyond it."""
        return max(self.cases, key=lambda case: case.error / case.bound)

    def failure(self) -> SelftestFailed | None:
        """One line that names the first failure; None where every case passed."""
        if not self.failures:
            return None
        return SelftestFailed(
            f"the kernel library failed its self-test on {self.device} ({self.device_name})",
            f"{self.failures[0]}; {len(self.failures)} of {len(self.cases)} cases failed; "
            f"{self.library}, sha256 {self.sha256[:12]}",
            FIX,
        )

    def raise_if_failed(self) -> None:
        """Raises `failure()`, if there is one."""
        if failure := self.failure():
            raise failure

    def summary(self) -> str:
        """One line for a person."""
        verdict = f"FAILED {len(self.failures)} of" if self.failures else "passed"
        line = (
            f"{self.device} ({self.device_name}): {verdict} {len(self.cases)} cases, {self.num_heads} heads, "
            f"{self.max_draft_tokens} draft tokens, {sum(self.seconds.values()):.2f} s"
        )
        return line if self.failures else f"{line}, worst error {self.worst.error / self.worst.bound:.0%} of its bound"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `passed` is added, for each case too; an error that is no number becomes None."""
        cases = [
            asdict(case) | {"passed": case.problem is None, "error": case.error if math.isfinite(case.error) else None}
            for case in self.cases
        ]
        return asdict(self) | {"passed": not self.failures, "cases": cases}
