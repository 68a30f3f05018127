"""What the demo shows: the answers, a table, build/demo.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .conversation import Answer
from .verdict import Figures, Run, differences

HEADINGS = ("mode", "requests", "spec_verify_ct", "kernel calls", "declined", "max abs", "rel L2")


def figures(answers: Sequence[Answer], ranks: Sequence[Mapping[str, Any]]) -> Figures:
    """A mode's figures, from its answers and from what its ranks report (`kdtree status --json`)."""
    counters = [rank["counters"] for rank in ranks if rank.get("counters")]
    layers = [layer for rank in ranks for layer in rank.get("layers") or [] if layer["compare_calls"]]
    reasons = sorted({reason for counter in counters for reason in counter["declined"]})
    return Figures(
        verify_calls=sum(answer.verify_calls for answer in answers),
        kernel_calls=sum(counter["kernel_calls"] for counter in counters),
        declined={reason: sum(counter["declined"].get(reason, 0) for counter in counters) for reason in reasons},
        max_abs=max((layer["max_abs"] for layer in layers), default=None),
        rel_l2=max((layer["worst_rel_l2"] for layer in layers), default=None),
    )


def answers(runs: Mapping[str, Run]) -> str:
    """Each answer once; where a mode's differs from off's, that is said beneath it."""
    lines = []
    others = {mode: {d.prompt: d for d in differences(runs["off"].answers, run.answers)} for mode, run in runs.items()}
    for index, answer in enumerate(runs["off"].answers):
        prompt = answer.prompt if len(answer.prompt) <= 60 else f"{answer.prompt[:57]}..."
        lines += [f"  {prompt}", f"    -> {answer.text}"]
        for mode, found in others.items():
            if difference := found.get(answer.prompt):
                kind = "a near-tie" if difference.near_tie else "no near-tie"
                lines.append(
                    f"    {mode} says {runs[mode].answers[index].text}: token {difference.position} differs, "
                    f"off's led by {difference.margin:.3f}, {kind}"
                )
    return "\n".join(lines)


def table(runs: Mapping[str, Run]) -> str:
    rows = [HEADINGS, *(_row(mode, run) for mode, run in runs.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def write(path: Path, runs: Mapping[str, Run], seconds: float, image: Mapping[str, Any]) -> None:
    """Writes demo.json. `image`: build/image.json, of which the sizes are taken."""
    base, added = image["base_bytes"], image["added_bytes"]
    reference = [answer.tokens for answer in runs["off"].answers]
    document = {
        "outputs_equal": all([answer.tokens for answer in run.answers] == reference for run in runs.values()),
        "modes": {mode: vars(run.figures) for mode, run in runs.items()},
        "seconds": round(seconds, 1),
        "image_bytes": {"image": base + added, "base": base, "added": added},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _row(mode: str, run: Run) -> tuple[str, ...]:
    found = run.figures
    declined = ", ".join(f"{reason} {count}" for reason, count in found.declined.items()) or "none"
    return (
        mode,
        str(len(run.answers)),
        str(found.verify_calls),
        str(found.kernel_calls),
        declined,
        "-" if found.max_abs is None else f"{found.max_abs:.2e}",
        "-" if found.rel_l2 is None else f"{found.rel_l2:.2e}",
    )
