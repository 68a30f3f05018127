"""Lets the methods in which a rank spends its start say so. SGLang's own run as ever, with what they were given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .. import contract
from ..wrap import wrap_once
from .phases import Phase, Phases

logger = logging.getLogger(__name__)


def follow(runner_class: type, phases: Phases) -> None:
    """Wraps methods of ModelRunner; one that this SGLang does not have is left out, since nothing depends on it."""

    def load(runner: Any) -> None:
        draft = getattr(runner, "is_draft_worker", False)
        phases.enter(Phase.DRAFT_WEIGHTS if draft else Phase.WEIGHTS)

    _around(runner_class, contract.LOAD, before=load)
    _around(
        runner_class,
        contract.CAPTURE,
        before=lambda _: phases.enter(Phase.GRAPHS),
        after=lambda _: phases.enter(Phase.FINISHING),
    )


def _around(cls: type, name: str, before: Callable[[Any], None], after: Callable[[Any], None] = lambda _: None) -> None:
    def make(stock: Callable[..., Any]) -> Callable[..., Any]:
        def method(runner: Any, *args: Any, **kwargs: Any) -> Any:
            before(runner)
            result = stock(runner, *args, **kwargs)
            after(runner)
            return result

        return method

    if callable(getattr(cls, name, None)):
        wrap_once(cls, name, make)
    else:
        logger.debug("kdtree: SGLang has no %s.%s: its part of the start is not told", cls.__name__, name)
