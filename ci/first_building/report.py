"""build/first-build.md: the body of a GitHub issue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .step import Outcome, Status, Step

DETAILS = 48_000
"""Characters of all details: with the table they stay below the 65,536 of an issue."""
FOLD = (
    "<details><summary>{name}</summary>\n\n"
    "```text\n{detail}\n```\n\n"
    "</details>\n"
)  # fmt: skip


def verdict(outcomes: Mapping[str, Outcome]) -> str:
    """One line for all of it."""
    for status in (Status.INTERRUPTED, Status.UNDER_WAY):
        if names := [name for name, outcome in outcomes.items() if outcome.status is status]:
            return f"{status}: at {names[0]}"
    wrong = [name for name, outcome in outcomes.items() if outcome.status is Status.NOT_SO]
    missing = [name for name, outcome in outcomes.items() if outcome.status is Status.NOT_RUN]
    if wrong:
        return f"not so: {', '.join(wrong)}"
    return f"ok as far as it was run; not run: {', '.join(missing)}" if missing else "ok"


def markdown(about: Mapping[str, Any], steps: Sequence[Step], outcomes: Mapping[str, Outcome]) -> str:
    """The report; paste it as it is."""
    kind = " (stand-in: no real registry, base or GPU)" if about["stand_in"] else ""
    lines = [f"## First build{kind}: {verdict(outcomes)}", "", _versions(about, outcomes), ""]
    lines += ["| step | | found | s |", "|---|---|---|---:|"]
    for step in steps:
        outcome = outcomes.get(step.name, Outcome(Status.NOT_RUN, "because the run ended before it"))
        lines.append(f"| {step.name} | {outcome.status} | {_cell(outcome.summary)} | {outcome.seconds:.1f} |")
    lines.append("")
    details = {step.name: outcomes[step.name].detail for step in steps if step.name in outcomes}
    details = {name: detail for name, detail in details.items() if detail.strip()}
    for name, detail in details.items():
        lines.append(FOLD.format(name=name, detail=_shortened(detail, DETAILS // len(details))))
    return "\n".join(lines) + "\n"


def _versions(about: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> str:
    """What was run, in a line an entry."""
    data = {name: outcome.data for name, outcome in outcomes.items()}
    engine, driver = data.get("docker", {}), data.get("driver", {})
    entries = {
        "KDTree": about["revision"],
        "SGLang": about["sglang"],
        "host": about["host"],
        "Docker": f"{engine.get('version', 'unknown')}; {data.get('buildx', {}).get('version', 'no buildx')}",
        "driver": driver.get("version", "none"),
        "run": f"{about['started']}, {about['seconds']:.0f} s",
    }
    return "\n".join(f"- {name}: {_cell(str(value))}" for name, value in entries.items())


def _cell(text: str) -> str:
    """One line that no table and no markup of GitHub's breaks at: what programs said is in it."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("@", "@\u200b")


def _shortened(detail: str, longest: int) -> str:
    """Its end, where the reason is; a fence in it would end the block."""
    detail = detail.strip("\n").replace("```", "'''")
    return detail if len(detail) <= longest else f"[...]\n{detail[-longest:]}"
