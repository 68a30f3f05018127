"""Stand-in for the compiled package flash_mla: EAGLE's worker imports its attention backend whichever is in use.

Any name can be imported; what it is raises when it is called.
"""

from __future__ import annotations

from typing import Any, NoReturn


class FlashMLASchedMeta:
    """Named in signatures; none is ever made here."""

    def __init__(self) -> None:
        _refuse("FlashMLASchedMeta")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse(name)

    absent.__name__ = name
    return absent


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(f"flash_mla.{name} is not in the stand-in for the compiled package")
