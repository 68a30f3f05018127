"""What the comparison found: a table for people, and build/reproduce.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from .compare import Comparison

MOST_PATHS = 20
"""Of one layer; the file has all of them."""
_DIGEST = len("sha256:") + 12


def lines(found: Comparison) -> Iterator[str]:
    """A row for all that was compared, and under it why what differs does."""
    width = max(len(row.what) for row in found.rows)
    for row in found.rows:
        verdict = row.a[:_DIGEST] if row.same else f"{row.a[:_DIGEST]} | {row.b[:_DIGEST]}"
        yield f"  {'same   ' if row.same else 'DIFFERS'}  {row.what:{width}}  {verdict}"
    for where, differences in groupby(found.differences, key=lambda one: one.where):
        yield where
        told = list(differences)
        for difference in told[:MOST_PATHS]:
            indent = "    "
            if difference.path:
                yield f"    {difference.path}"
                indent += indent
            yield from (f"{indent}{line}" for line in difference.lines)
        if len(told) > MOST_PATHS:
            yield f"    and {len(told) - MOST_PATHS} more"


def document(found: Comparison, about: dict[str, Any]) -> dict[str, Any]:
    """The report as JSON has it."""
    rows = [{"what": row.what, "same": row.same, "a": row.a, "b": row.b} for row in found.rows]
    return {**about, "same": found.same, "compared": rows, "differences": [asdict(one) for one in found.differences]}
