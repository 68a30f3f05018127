"""A step of the first build, how it can end, and the walk through all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .site import Site


class Status(StrEnum):
    OK = "ok"
    NOT_SO = "not so"
    NOT_RUN = "not run"
    UNDER_WAY = "under way"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Found:
    """What a step found.

    Attributes:
        summary: One line.
        detail: What the report shows when asked to, as it was printed.
        data: What later steps read, and the report's JSON holds.
    """

    summary: str
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


class NotSo(Exception):
    """A step found what must not be; the text is one line."""

    def __init__(self, what: str, found: str, fix: str, detail: str = "", data: Mapping[str, Any] | None = None):
        super().__init__(f"{what}: {found}. Fix: {fix}")
        self.what, self.found, self.fix = what, found, fix
        self.detail = detail
        self.data = data or {}

    @classmethod
    def of(cls, refusal: Exception) -> NotSo:
        """The same, of another's refusal in that form."""
        told, _, fix = str(refusal).partition(". Fix: ")
        what, _, found = told.rpartition(": ")
        return cls(what, found, fix)


class NotRun(Exception):
    """A step that cannot run here, and why; nothing is wrong."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: In the report, and of `--until`.
        about: What it does, in a few words.
        run: Does it. Raises NotSo or NotRun.
        needs: The steps that must have been ok before.
        anew: Done again by a run that goes on from an earlier one: cheap, or of the moment.
    """

    name: str
    about: str
    run: Callable[[Site], Found]
    needs: tuple[str, ...] = ()
    anew: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    status: Status
    summary: str
    seconds: float = 0.0
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def walk(
    steps: Iterable[Step],
    site: Site,
    outcomes: dict[str, Outcome],
    changed: Callable[[Step], None],
    until: str = "",
) -> None:
    """Does the steps one after another, all that can be done; `changed` hears of each before and after.

    Args:
        outcomes: Of an earlier run, what need not be done again; those of this one are put in.
        until: The last step to do; all where it is empty.

    Raises:
        BaseException: What interrupts a step; the step's outcome says so.
    """
    ended = False
    for step in steps:
        if step.name in outcomes and not step.anew:
            continue
        if reason := f"--until {until}" if ended else _missing(step, outcomes):
            outcomes[step.name] = Outcome(Status.NOT_RUN, reason)
        else:
            outcomes[step.name] = Outcome(Status.UNDER_WAY, step.about)
            changed(step)
            outcomes[step.name] = _done(step, site, outcomes)
        site.data[step.name] = outcomes[step.name].data
        changed(step)
        ended |= step.name == until


def _missing(step: Step, outcomes: Mapping[str, Outcome]) -> str:
    """Why the step cannot be done; empty where it can."""
    for need in step.needs:
        if (found := outcomes[need]).status is not Status.OK:
            if found.status is not Status.NOT_RUN:
                return f"because {need} is {found.status}"
            # The first reason, not a chain of them.
            return found.summary if found.summary.startswith("because ") else f"because {need}: {found.summary}"
    return ""


def _done(step: Step, site: Site, outcomes: dict[str, Outcome]) -> Outcome:
    started = time.monotonic()
    try:
        found = step.run(site)
    except NotSo as error:
        return Outcome(Status.NOT_SO, str(error), time.monotonic() - started, error.detail, error.data)
    except NotRun as error:
        return Outcome(Status.NOT_RUN, str(error), time.monotonic() - started)
    except BaseException:
        outcomes[step.name] = Outcome(Status.INTERRUPTED, step.about, time.monotonic() - started)
        raise
    return Outcome(Status.OK, found.summary, time.monotonic() - started, found.detail, found.data)
