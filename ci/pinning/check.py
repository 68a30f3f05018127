"""Holds the repository to pins.toml: the file's own shape, and every place that names what it pins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from . import lockfile, shape, uses
from .lockfile import ROOT


def complaints(root: Path) -> Iterator[str]:
    """What is wrong in the checkout, one line each. A file that has not its shape is not compared with anything."""
    pins = lockfile.load(root / "ci" / "pins.toml")
    try:
        wrong = [*shape.complaints(pins)]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        wrong = [f"pins.toml has a value of another kind than it must be, or lacks one: {error}"]
    yield from wrong or uses.complaints(pins, root)


def main(root: Path = ROOT) -> int:
    """Prints every complaint; 0 only where there is none."""
    found = [*complaints(root)]
    for complaint in found:
        print(f"pins: {complaint}", file=sys.stderr)
    return 1 if found else 0
