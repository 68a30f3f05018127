"""What the servers of each configuration did, as figures: for a page, and to judge a limit by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from demo.verdict import differences

from .dialogue import Answer
from .results import Results
from .starts import EXACT, Start
from .verdict import Run, accept_length


@dataclass(frozen=True)
class Parting:
    """How far one server's answers are from another's.

    Attributes:
        parted: Answers that part from the reference's.
        answers: Of how many.
        greatest_lead: By how much the reference's token led at the worst of the partings, in logits.
        noise: 99th percentile of how much a token's lead differs before the answers part, in logits.
    """

    parted: int
    answers: int
    greatest_lead: float
    noise: float


def parting(reference: Sequence[Answer], other: Sequence[Answer]) -> Parting:
    found = differences(reference, other)
    ends = {difference.prompt: difference.position for difference in found}
    noise = sorted(
        abs(ours - theirs)
        for a, b in zip(reference, other, strict=True)
        for ours, theirs in list(zip(a.margins, b.margins, strict=True))[: ends.get(a.prompt)]
    )
    percentile = noise[len(noise) * 99 // 100] if noise else 0.0
    return Parting(len(found), len(reference), max((d.margin for d in found), default=0.0), percentile)


def figures(start: Start, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Of one configuration, all of whose servers have answered."""
    pairs = [("validate", "off"), ("on", "off"), *([("on", EXACT), ("off", EXACT)] if start.fp8 else [])]
    layers = [layer for rank in runs["validate"].ranks.values() for layer in rank["layers"]]
    return {
        "parting": {f"{a} from {b}": asdict(parting(runs[b].answers, runs[a].answers)) for a, b in pairs},
        "accept_length": {mode: round(accept_length(run.answers), 3) for mode, run in runs.items()},
        "verify_steps": sum(answer.verify_calls for answer in runs["on"].answers),
        "cached_tokens": sum(answer.cached for answer in runs["on"].answers),
        "compared_calls": min(layer["calls"] for layer in layers),
        "worst_rel_l2": max(layer["worst_rel_l2"] for layer in layers),
        "calls_out_of_bound": sum(layer["exceeded_calls"] for layer in layers),
    }


def gathered(results: Results, starts: Sequence[Start]) -> dict[str, dict[str, Any]]:
    """The figures of the configurations all of whose servers have answered, by name."""
    found = {}
    for start in starts:
        runs = {mode: run for mode in start.modes if (run := results.run(start, mode)) is not None}
        if len(runs) == len(start.modes):
            found[start.name] = figures(start, runs)
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The figures in Markdown."""
    lines = [
        "| configuration | validate from off | on from off | on from exact | off from exact | accept length, off / on "
        "| calls compared, a layer | worst rel. L2 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        cells = [_parting(one["parting"].get(f"{a} from {b}")) for a, b in _COLUMNS]
        accept = one["accept_length"]
        cells += [f"{accept['off']:.3f} / {accept['on']:.3f}", str(one["compared_calls"]), f"{one['worst_rel_l2']:.2g}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


_COLUMNS = (("validate", "off"), ("on", "off"), ("on", EXACT), ("off", EXACT))


def _parting(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    lead = f", led by {one['greatest_lead']:.2f}" if one["parted"] else ""
    return f"{one['parted']} of {one['answers']}{lead}; noise {one['noise']:.2f}"
