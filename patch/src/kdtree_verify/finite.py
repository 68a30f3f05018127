"""JSON has neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """The document with None in place of each number that is no finite one."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
