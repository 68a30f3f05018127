"""Replaces a method of a class, once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "__kdtree_wrapper__"


def wrap_once(cls: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces method `name` of `cls` by `make(method)`, unless this was done before."""
    stock = getattr(cls, name)
    if hasattr(stock, _MARK):
        return
    wrapper = functools.wraps(stock)(make(stock))
    setattr(wrapper, _MARK, True)
    setattr(cls, name, wrapper)
