"""Tags of SGLang's nightlies: PREFIX-YYYYMMDD-COMMIT. Which are newer than the pinned one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .lockfile import PinsError

_TAG = re.compile(r"(?P<prefix>nightly-[a-z0-9-]+?)-(?P<day>20\d{6})-(?P<commit>[0-9a-f]{8})")


@dataclass(frozen=True)
class Nightly:
    """A nightly's tag, taken apart."""

    tag: str
    prefix: str
    day: str
    commit: str


def parse(tag: str) -> Nightly | None:
    """The tag, None where it is none of a nightly."""
    match = _TAG.fullmatch(tag)
    return Nightly(tag, match["prefix"], match["day"], match["commit"]) if match else None


def newer(tags: Iterable[str], pinned: str) -> list[Nightly]:
    """Those of the pinned one's prefix that are newer, newest first."""
    now = parse(pinned)
    if now is None:
        raise PinsError(f"[images.sglang] tag {pinned} is none of a nightly: nothing says what is newer")
    found = [nightly for nightly in map(parse, tags) if nightly and nightly.prefix == now.prefix]
    return sorted((each for each in found if each.day > now.day), key=lambda each: (each.day, each.tag), reverse=True)
