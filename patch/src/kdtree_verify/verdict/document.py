"""The report as one document: what `--json` prints, and what text and page are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..evidence.read import Entry
from ..finite import finite
from . import thresholds
from .judge import Criterion, Verdict, explained_limit, not_covered, well_compared
from .merge import Merged
from .saving import Times

SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """One verdict, with all that it was made from.

    Attributes:
        directory: Where the evidence lies.
        made_at: Seconds since the epoch.
    """

    directory: str
    made_at: float
    verdict: Verdict
    criteria: list[Criterion]
    evidence: Merged
    times: list[Times]

    @property
    def limits(self) -> list[str]:
        """What is not covered."""
        return list(not_covered(self.evidence))


def runs(evidence: Merged) -> list[list[Entry]]:
    """The counted entries, run by run, the oldest first."""
    found: dict[str, list[Entry]] = {}
    for entry in evidence.entries:
        found.setdefault(entry.run, []).append(entry)
    return list(found.values())


def document(report: Report) -> dict[str, Any]:
    """For JSON; a number that is NaN or infinite becomes None."""
    evidence = report.evidence
    times = {id(each.cell): each for each in report.times}
    cells = []
    for cell in evidence.cells:
        timed = times.get(id(cell))
        cells.append(
            asdict(cell)
            | {
                "calls_per_layer": evidence.calls_per_layer(cell),
                "well_compared": well_compared(evidence, cell),
                "stock_us": timed and timed.stock_us,
                "kernel_us": timed and timed.kernel_us,
                "saved_ms_per_step": timed and timed.saved_ms,
            }
        )
    return finite(
        {
            "schema": SCHEMA,
            "verdict": report.verdict,
            "code": int(report.verdict.code),
            "directory": report.directory,
            "made_at": report.made_at,
            "setup": evidence.setup.as_dict(),
            "criteria": [asdict(criterion) for criterion in report.criteria],
            "not_covered": report.limits,
            "bound": evidence.bound,
            "yardstick": asdict(evidence.yardstick) if evidence.yardstick else None,
            "explained_limit": explained_limit(evidence),
            "layers": [asdict(layer) for layer in evidence.layers()],
            "cells": cells,
            "history": [_point(point) for point in evidence.points()],
            "runs": [_run(entries) for entries in runs(evidence)],
            "not_counted": [asdict(each) for each in evidence.not_counted],
            "thresholds": {name.lower(): value for name, value in vars(thresholds).items() if name.isupper()},
        }
    )


def _point(point: Any) -> dict[str, Any]:
    layers = [{"model": model, "layer": layer, "worst": worst} for (model, layer), worst in point.layers.items()]
    return asdict(point) | {"layers": layers}


def _run(entries: list[Entry]) -> dict[str, Any]:
    return {
        "run": entries[0].run,
        "host": entries[0].host,
        "mode": entries[0].mode,
        "started_at": min(entry.started_at for entry in entries),
        "updated_at": max(entry.updated_at for entry in entries),
        "ranks": [entry.rank for entry in entries],
        "compared_calls": sum(entry.compared for entry in entries),
        "files": [entry.name for entry in entries],
    }
