"""Ranges of counts, differences and layers, as people read them."""

from __future__ import annotations

import math

_KILO = 1024


def difference(value: float) -> str:
    """A relative L2 difference."""
    return f"{value:.2e}" if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def short(value: int) -> str:
    """8192 as 8K."""
    return f"{value // _KILO}K" if value and value % _KILO == 0 else f"{value:,}"


def prefix(start: int, below: int | None) -> str:
    """A range of prefix lengths in tokens: from its first to below its end."""
    return f"{short(start)} and more" if below is None else f"{short(start)} to {short(below)}"


def batch(start: int, below: int | None) -> str:
    """A range of requests in one call."""
    if below is None:
        return f"{start} and more"
    return str(start) if below == start + 1 else f"{start} to {below - 1}"


def layer(model: str, number: int) -> str:
    """A layer's name; a draft model's layers are counted by themselves."""
    return f"{'draft ' if model == 'draft' else ''}layer {number}"
