"""The report's lines: what a person reads while it runs."""

from __future__ import annotations

from typing import Any

from .cells import Ceilings
from .model import cell_of
from .results import Run

NAMES = {
    "kdtree": "kdtree",
    "stock_sm90": "SGLang 32x64",
    "stock_sm120": "SGLang 32x32",
    "flashinfer_fa2": "fa2",
    "flashinfer_fa3": "fa3",
    "sampled": "on, sampled",
}
"""Contenders as tables and plots name them, where that is not their key: SGLang's by its tile of queries and keys."""


def head(run: Run, peers: dict[str, str]) -> list[str]:
    """The card, the ceilings, who is missing, and the columns' names."""
    hardware, ceilings = run["hardware"], run["ceilings"]
    clocks = ", ".join(f"{name} {value}" for name, value in run["clocks"].items())
    lines = [
        f"{hardware['name']}, {hardware['multiprocessors']} multiprocessors, driver {run['versions']['driver']}, "
        f"torch {run['versions']['torch']}; library {run['library']['source_hash'][:12]}, commit {run['commit'][:12]}",
        f"ceilings: copy {ceilings['copy'] / 1e3:.0f} GB/s, mma.sync bf16 {ceilings['mma'] / 1e6:.0f} TFLOP/s "
        f"at {ceilings['mma_mhz']:.0f} MHz" + (f"; {clocks}" if clocks else ""),
    ]
    lines += [f"without {NAMES.get(name, name)}: {reason}" for name, reason in peers.items()]
    lines.append(
        "requests x heads x drafts x prefix, pool; us of a call (~ timed once, ! launched eagerly), "
        "times the floor; error against float64"
    )
    return lines


class RowLine:
    """Formats rows of a run with these ceilings."""

    def __init__(self, ceilings: Ceilings) -> None:
        self.ceilings = ceilings

    def __call__(self, row: dict[str, Any]) -> str:
        cell = cell_of(row)
        line = f"{cell.label():>22} {cell.pool}"
        if "skipped" in row:
            return f"{line}  skipped: {row['skipped']}"
        if "captured" in row:
            line += f" (captured for {row['captured']})"
        floor = self.ceilings.floor_us(cell)
        parts = [f"floor {floor:8.1f}"]
        for name, entry in row["times"].items():
            parts.append(f"{NAMES.get(name, name)} {_entry(entry, floor if name == 'kdtree' else 0)}")
        return f"{line}  " + " | ".join(parts)


def _entry(entry: dict[str, Any], floor: float) -> str:
    if entry["status"] != "timed":
        return f"{entry['status']}: {entry['reason']}"
    mark = {"once": "~", "eager": "!"}.get(entry["how"], "")
    ratio = f" {entry['us'] / floor:5.2f}x" if floor else ""
    error = f" {entry['error']:.1e}" if "error" in entry else ""
    return f"{entry['us']:9.1f}{mark}{ratio}{error}"


def model_lines(run: Run) -> list[str]:
    """The model beside what was measured."""
    told = run.get("model")
    if not told:
        return []
    fit = told["fit"]
    lines = [
        f"ESTIMATE, not measured (docs/benchmark.md): {fit['fixed_us']:.1f} us fixed, {fit['efficiency']:.0%} of the "
        f"busiest resource's rate, both fitted to {fit['source']}",
        f"{'':>28} {'measured':>9} {'model':>9} " + " ".join(f"{name:>22}" for name in told["rows"][0]["estimates"]),
    ]
    for row in told["rows"]:
        measured = f"{row['measured_us']:9.1f}" if row["measured_us"] else f"{'-':>9}"
        guesses = " ".join(f"{guess['us']:7.1f} {guess['bound_by']:>14}" for guess in row["estimates"].values())
        lines.append(f"{row['key']:>28} {measured} {row['modelled_us']:9.1f} {guesses}")
    return lines
