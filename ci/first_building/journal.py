"""build/first-build.json: what each step found, written before and after it, so that the next run goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .running import run
from .step import Outcome, Status

SCHEMA = 1


def identity(*, stand_in: bool) -> str:
    """What an earlier run must have been of for its steps to count: the sources, changes included, and the kind.

    Empty where git cannot tell: then nothing counts.
    """
    asked = run("git", "rev-parse", "HEAD"), run("git", "diff", "HEAD")
    if any(answer.code != 0 for answer in asked):
        return ""
    sources = "".join(answer.output for answer in asked)
    return hashlib.sha256(f"{sources}{stand_in}".encode()).hexdigest()[:16]


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


def write(path: Path, text: str) -> None:
    """Puts a file in the place of an earlier one, whole. Raises OSError, and leaves the earlier one."""
    partial = path.with_suffix(f"{path.suffix}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
