"""The licence of each thing that is added: known, and allowed."""

from __future__ import annotations

import re
from typing import Any

from .errors import ShippingError


def of(name: str, policy: dict[str, Any]) -> str:
    """The SPDX expression of an addition. Raises ShippingError where it is unknown, or holds what is not allowed."""
    expression = policy["of"].get(name)
    if expression is None:
        raise ShippingError(f"no licence is known of what the image adds: {name}. Fix: [licences.of] in shipping.toml")
    for part in parts(expression):
        if part not in policy["allowed"]:
            raise ShippingError(f"licence {part} of {name} is not allowed. Fix: do without it, or ci/shipping.toml")
    return str(expression)


def parts(expression: str) -> list[str]:
    """The licences that an expression names."""
    return [word for word in re.split(r"[\s()]+", expression) if word and word not in ("AND", "OR", "WITH")]


def label(policy: dict[str, Any]) -> str:
    """What org.opencontainers.image.licenses says: all that is, or may be, added."""
    named = {part for expression in policy["of"].values() for part in parts(expression)}
    ours = sorted(part for part in named if not part.startswith("LicenseRef-"))
    return " AND ".join(ours + sorted(named - set(ours)))
