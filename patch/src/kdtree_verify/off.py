"""KDTREE_VERIFY=off: SGLang runs as it is, and a rank that is up says so. Nothing of the kernel is imported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .config import Mode
from .reporting import state
from .reporting.state import State, Verdict
from .startup.phases import Phase, Phases
from .wrap import wrap_once

logger = logging.getLogger(__name__)


def report_scheduler(module: ModuleType, directory: Path) -> None:
    """Lets each Scheduler of the module write its rank's state file when it is built."""

    def make_init(stock: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            phases = Phases(Mode.OFF, directory)
            phases.enter(Phase.LOADING)
            stock(self, *args, **kwargs)
            _report(directory, phases)

        return __init__

    scheduler = getattr(module, "Scheduler", None)
    if isinstance(scheduler, type):
        wrap_once(scheduler, "__init__", make_init)


def _report(directory: Path, phases: Phases) -> None:
    # Off must not stand in a server's way, whatever happens here.
    try:
        identity = state.this_rank()
        path = state.rank_path(directory, identity)
        phases.hand_over(path)
        phases.enter(Phase.READY)
        state.write(path, state.rank_document(Mode.OFF, identity, Verdict(State.OFF)) | phases.fields())
    except Exception as error:
        logger.warning("kdtree: the state file cannot be written: %s", error)
