"""A process of the server whose parent died while it was still importing.

SGLang has its processes killed with their parent (PR_SET_PDEATHSIG), but each asks for that itself, after seconds of
imports: who is killed before leaves them behind. A scheduler breaks at its pipe then; a detokenizer waits for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal


def end_if_orphan() -> None:
    """Ends this process if another's multiprocessing started it, and that one is gone. SGLang loads plugins right
    after it has asked for the signal, so that no moment is left between."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)  # as the signal would have
