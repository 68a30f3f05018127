"""A follower of the reporter on a thread of its own, for what it waits for may never come: a disk over a network."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Apart:
    """Calls `follower` on a thread of its own each time that it is called itself, and waits for nothing.

    A call that comes while the follower is still at the last one is made up for by one when it is done.

    Args:
        follower: What is called. Where it raises, it is called no more, and the next call here raises the same.
        name: The thread's.
    """

    def __init__(self, follower: Callable[[], None], name: str):
        self._follower = follower
        self._due = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __call__(self) -> None:
        if self._error is not None:
            raise self._error
        if self._thread.ident is None:
            self._thread.start()
        self._due.set()

    def _run(self) -> None:
        while self._error is None:
            self._due.wait()
            self._due.clear()
            try:
                self._follower()
            except Exception as error:
                self._error = error
