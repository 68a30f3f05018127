"""How long the device takes for stock's computation of a call and for ours."""

from __future__ import annotations

import logging

from ..native.abi import Status
from .kernel import Kernel
from .records import Records

logger = logging.getLogger(__name__)


class Stopwatch:
    """Three stamps of one call, made in the stream: before stock, between stock and ours, after ours.

    Where the host issues one kernel after the other, the device waits for the host, and what lies between stamps is the
    host's time. So only what goes into a CUDA graph is timed, and what the host library computes itself. Nothing here
    raises: a call without times is still a call.
    """

    def __init__(self, kernel: Kernel, records: Records):
        self._kernel, self._records = kernel, records
        self._runs = False

    def begin(self) -> None:
        """Before stock."""
        self._runs = self._kernel.device.type == "cpu" or self._capturing()
        self._stamp(0)

    def between(self) -> None:
        """After stock, and before ours."""
        self._stamp(1)

    def end(self) -> None:
        """After ours."""
        self._stamp(2)

    @property
    def stamps(self) -> int | None:
        """Where the device has the call's three stamps; None where it has not."""
        return self._records.stamp(0) if self._runs else None

    def _capturing(self) -> bool:
        try:
            return self._kernel.capturing()
        except Exception:
            return False

    def _stamp(self, index: int) -> None:
        if not self._runs:
            return
        try:
            self._runs = self._kernel.stamp(self._records.stamp(index)) == Status.OK
        except Exception as error:
            self._runs = False
            logger.debug("kdtree: a call is not timed: %r", error)
