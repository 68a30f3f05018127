"""A blob as it arrives, too large for memory: counted, hashed, and an error where it is not what was asked for."""

from __future__ import annotations

import hashlib
import http.client
import io
from collections.abc import Callable

from .errors import RegistryError, Unreachable


class Blob(io.RawIOBase):
    """Reads a blob once. Its end, early or of other bytes, raises RegistryError: nobody takes half for the whole."""

    def __init__(self, digest: str, size: int, read: Callable[[int], bytes]) -> None:
        self.digest, self.size = digest, size
        self._read, self._hash, self._received = read, hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes. Raises Unreachable where the connection breaks, RegistryError on other bytes."""
        wanted = self.size - self._received if size < 0 else size
        try:
            part = self._read(wanted)
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(str(error)) from error
        self._hash.update(part)
        self._received += len(part)
        if not part and wanted and self._received < self.size:
            raise self._broken("the connection ended")
        if self._received >= self.size and f"sha256:{self._hash.hexdigest()}" != self.digest:
            raise RegistryError(f"the registry answers with another blob: {self.digest}. Fix: push the image again")
        return part

    def drain(self) -> None:
        """Reads what is left, so that all of it is checked."""
        while self.read(1 << 20):
            pass

    def _broken(self, why: str) -> Unreachable:
        return Unreachable(
            f"the registry does not answer: {self.digest[:19]}…: {why} after {self._received:,} of {self.size:,}. "
            "Fix: the network, then again"
        )
