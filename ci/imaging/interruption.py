"""A signal that would end a command ends it by way of what has to be undone."""

from __future__ import annotations

import signal
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came; what was begun is undone on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.code = 128 + number


def listen() -> None:
    """From now on the signals raise Interrupted."""
    for number in ENDING:
        signal.signal(number, _interrupt)


def ignore() -> None:
    """From now on the signals do nothing."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: object) -> NoReturn:
    ignore()  # a second one does not end the undoing
    raise Interrupted(number)
