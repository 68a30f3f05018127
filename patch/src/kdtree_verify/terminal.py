"""Text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    """The text in one line, without what could steer a terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
