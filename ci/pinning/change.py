"""Another nightly as one diff: every file that names the pinned one, and before the first what was found about it."""

from __future__ import annotations

import datetime
import difflib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from . import check
from .lockfile import PINS_FILE, ROOT, PinsError
from .nightlies import Nightly
from .upstream import Found

# What is held equal to the pins by the check; what else names a nightly is history.
_HOLDERS = ("ci/pins.toml", "docker/Dockerfile")


def diff(pins: dict[str, Any], nightly: Nightly, found: Found, about: list[str], scratch: Path) -> str:
    """The change, checked on a copy of the checkout in `scratch`.

    Raises:
        PinsError: The changed copy does not keep to its pins.
    """
    before = {name: (ROOT / name).read_text(encoding="utf-8") for name in _HOLDERS}
    after = {name: _moved(text, pins, nightly) for name, text in before.items()}
    after[_HOLDERS[0]] = _entry(after[_HOLDERS[0]], pins["images"]["sglang"], found)
    after = {name: text.replace(pins["images"]["sglang"]["digest"], found.digest) for name, text in after.items()}
    _hold(after, scratch)
    parts = [_unified(name, before[name], after[name]) for name in _HOLDERS]
    return "\n".join([*about, ""]) + "\n" + "".join(parts)


def _moved(text: str, pins: dict[str, Any], nightly: Nightly) -> str:
    commit = pins["sglang"]["commit"]
    text = text.replace(pins["images"]["sglang"]["tag"], nightly.tag)
    return re.sub(rf'^((?:commit = "|ARG SGLANG_COMMIT=)){commit}\b', rf"\g<1>{nightly.commit}", text, flags=re.M)


def _entry(text: str, image: dict[str, Any], found: Found) -> str:
    """pins.toml with the entry's manifest and day."""
    head, table, rest = text.partition("[images.sglang]\n")
    entry, gap, others = rest.partition("\n[")
    entry = entry.replace(f'manifest = "{image["manifest"]}"', f'manifest = "{found.manifest.digest}"')
    today = datetime.datetime.now(datetime.UTC).date()
    entry = entry.replace(f"recorded = {image['recorded']}", f"recorded = {today}")
    return head + table + entry + gap + others


def _hold(after: dict[str, str], scratch: Path) -> None:
    """The check of ci/pins on a copy of the checkout with the changed files."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name in after or not (ROOT / name).is_file():
            continue
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, scratch / name)
    for name, text in after.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_text(text, encoding="utf-8")
    if found := [*check.complaints(scratch)]:
        raise PinsError(f"the changed files would not keep to {PINS_FILE.name}: {found[0]}")


def _unified(name: str, before: str, after: str) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
