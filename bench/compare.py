"""A run beside the one that the repository records for the same card: what became slower, or less exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kdtree_verify.errors import UsageError

from .results import Results, Run

SLOWER_TOGETHER = 1.03
"""In geometric mean over a section's cells. Chosen, not measured: no card's second run is recorded yet."""
SLOWER_ALONE = 1.10
"""Of a single cell, unless it is within JITTER_US: a call of 15 us is timed to half a microsecond."""
JITTER_US = 1.0
LESS_EXACT = 1.1
"""Of the error against float64, which the inputs alone decide."""


def compare(path: Path, records: Path) -> tuple[list[str], list[str]]:
    """What is to be told of a file of results, and what of that is worse than recorded.

    Args:
        path: The new results.
        records: The folder of the recorded ones, a file a card.

    Raises:
        UsageError: The new file has no run, or a file cannot be read.
    """
    told: list[str] = []
    worse: list[str] = []
    for name, run in Results(path).sections.items():
        card = run["hardware"]["name"]
        record = _recorded(records, card, name)
        if record is None:
            told.append(f"{name}: no record for this card, {card}: keep {path.name} as the first one ({records})")
            continue
        lines, bad = _section(name, run, record)
        told += lines
        worse += bad
    if not told:
        raise UsageError("no run in the results", str(path), "run ci/bench to its end")
    return told, worse


def _recorded(records: Path, card: str, name: str) -> Run | None:
    """The section of the card's record; None where there is none."""
    for path in sorted(records.glob("*.json")):
        run = Results(path).sections.get(name)
        if run is not None and run["hardware"]["name"] == card:
            return run
    return None


def _section(name: str, run: Run, record: Run) -> tuple[list[str], list[str]]:
    """The section's lines, and those of them that are bad."""
    old = {row["key"]: row["times"]["kdtree"] for row in record["rows"]}
    new = {row["key"]: row["times"]["kdtree"] for row in run["rows"]}
    pairs = [(key, old[key], new[key]) for key in old if key in new and _timed(old[key]) and _timed(new[key])]
    bad = [
        f"{name}: {key}: recorded, and not timed now" for key in old if _timed(old[key]) and not _timed(new.get(key))
    ]
    bad += [f"{name}: {line}" for line in _cells(pairs)]
    lines = [f"{name}: against {record['date'][:10]}, commit {record['commit']}: {len(pairs)} cells"]
    if pairs:
        together = math.exp(sum(math.log(after["us"] / before["us"]) for _, before, after in pairs) / len(pairs))
        lines.append(f"{name}: {together:.3f} times the recorded time in geometric mean")
        if together > SLOWER_TOGETHER:
            bad.append(f"{name}: slower together: {together:.3f} times the recorded, over {SLOWER_TOGETHER}")
    lines += [f"{name}: {what}" for what in _otherwise(run, record)]
    return lines, bad


def _cells(pairs: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> Iterator[str]:
    for key, before, after in pairs:
        times = f"{before['us']:.2f} -> {after['us']:.2f} us"
        if after["us"] > SLOWER_ALONE * before["us"] and after["us"] - before["us"] > JITTER_US:
            yield f"{key}: slower: {times}, over {SLOWER_ALONE}"
        if after["error"] > LESS_EXACT * before["error"]:
            yield f"{key}: less exact: error {before['error']:.2e} -> {after['error']:.2e}, over {LESS_EXACT}"


def _otherwise(run: Run, record: Run) -> Iterator[str]:
    """What else may have changed the times: software, and the card's limits."""
    for key in sorted(run["versions"].keys() | record["versions"].keys()):
        before, after = record["versions"].get(key), run["versions"].get(key)
        if before != after:
            yield f"{key} was {before}, is {after}"
    before, after = (each.get("clocks", {}).get("power.limit") for each in (record, run))
    if before != after:
        yield f"the power limit was {before}, is {after}"


def _timed(time: dict[str, Any] | None) -> bool:
    return time is not None and time["status"] == "timed"
