"""Replaces a method of a class or of one object, once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "__kdtree_wrapper__"


def wrap_once(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces method `name` of `owner` by `make(method)`, unless this was done before."""
    stock = getattr(owner, name)
    if hasattr(stock, _MARK):
        return
    wrapper = functools.wraps(stock)(make(stock))
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
