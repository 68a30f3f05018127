"""A process of the server whose parent died while it was still importing.

SGLang has its processes killed with their parent (PR_SET_PDEATHSIG), but each asks for that itself, after seconds of
imports: who is killed before leaves them behind. A scheduler breaks at its pipe then; a detokenizer waits for ever.
"""

from __future__ import annotations

import multiprocessing.context
import os
import signal


def end_if_orphan() -> None:
    """Ends this process if another's multiprocessing started it, and that one is gone. SGLang loads plugins right
    after it has asked for the signal, so that no moment is left between."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        _end()


def spawning() -> int | None:
    """While multiprocessing pickles a process that it spawns: its parent, this process; None where it is another's
    child (a fork server's)."""
    starting = multiprocessing.context.get_spawning_popen()
    return os.getpid() if getattr(starting, "method", None) == "spawn" else None


def end_if_not_child_of(parent: int | None) -> None:
    """For a process that was spawned and is being unpickled, behind the imports of its target: ends it if `parent`, of
    spawning(), is gone. For those in which SGLang loads no plugins (0.5.21's detokenizer); what is left is the moment
    until SGLang asks for the signal."""
    if parent is not None and os.getppid() != parent:
        _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as the signal would have
