"""build/first-build.json: what each step found, written before and after it, so that the next run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imaging.recipe import GIVEN
from standin import stamp

from .running import run
from .site import ROOT
from .step import Outcome, Status

SCHEMA = 1


def identity(*, stand_in: bool) -> str:
    """What an earlier run must have been of for its steps to count: the sources, with what git has not, and the kind.

    Empty where git cannot tell: then nothing counts.
    """
    new = run("git", "ls-files", "-z", "--others", "--exclude-standard", "--", "ci", *GIVEN)
    asked = new, run("git", "rev-parse", "HEAD"), run("git", "diff", "HEAD")
    if any(answer.code != 0 for answer in asked):
        return ""
    sources = "".join(answer.output for answer in asked)
    files = (ROOT / name for name in new.output.split("\0") if name)
    return stamp(f"{sources}{stand_in}".encode(), *(file for file in files if file.is_file()))


def kept(path: Path, wanted: str) -> dict[str, Outcome]:
    """The steps that an earlier run of the same identity found ok; none where there is no such run."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not wanted or (document["schema"], document["identity"]) != (SCHEMA, wanted):
            return {}
        steps = document["steps"].items()
        return {name: Outcome(Status.OK, **fields(step)) for name, step in steps if step["status"] == Status.OK}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def fields(step: Mapping[str, Any]) -> dict[str, Any]:
    return {name: step[name] for name in ("summary", "seconds", "detail", "data")}


def document(about: Mapping[str, Any], wanted: str, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """The file's content."""
    steps = {name: vars(outcome) | {"seconds": round(outcome.seconds, 1)} for name, outcome in outcomes.items()}
    return {"schema": SCHEMA, "identity": wanted, **about, "steps": steps}


def as_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"
