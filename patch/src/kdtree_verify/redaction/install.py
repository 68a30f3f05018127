"""Puts the filter into this process and into every process that it starts.

It sits where a line is finished, whoever wrote it: `logging.Handler.format`, whose result holds the traceback as well
and which SGLang's repeated `logging.basicConfig(force=True)` and uvicorn's own configuration leave alone; and the
`write` of sys.stdout and sys.stderr, for what is printed. What a library writes to the file descriptor itself passes.

Processes started by multiprocessing's spawn carry it along: SGLang loads plugins in some of them only (not in
detokenizer routers, nor in HTTP workers; 0.5.21 not in the detokenizer either).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from .. import orphan
from ..wrap import wrap_once
from .redactor import Redactor

_WITHHELD = "kdtree: a line was withheld: it could not be searched for secrets"

_redactor = Redactor()


def everywhere(secrets: Iterable[str]) -> None:
    """Hides these secrets, and those of earlier calls, in what this process and its children write from now on.

    Never raises.
    """
    global _redactor
    with suppress(Exception):
        _redactor = Redactor(_redactor.secrets | frozenset(secrets))
    for put in (_into_logging, _into_streams, _into_children):
        with suppress(Exception):
            put()


def hide(text: Any) -> Any:
    """The text as this process may write it. Never raises."""
    try:
        return _redactor(text)
    except Exception:  # a text of a strange kind; a secret may be in it
        return _WITHHELD


def _into_logging() -> None:
    wrap_once(
        logging.Handler,
        "format",
        lambda stock: lambda self, record: hide(stock(self, record)),
    )


def _into_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        # On the object: whoever holds it, its descriptor and its buffer keep them.
        with suppress(AttributeError, TypeError):
            wrap_once(stream, "write", lambda stock: lambda text: stock(hide(text)))


def _into_children() -> None:
    from multiprocessing.process import BaseProcess  # here: `kdtree health` starts no process

    def make(stock: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, *args, **kwargs)
            # An attribute is pickled with the process that is spawned, and restored before its target runs, if behind
            # the imports that it needs: so it also looks whether the parent has lived as long.
            self._kdtree_arrival = _Arrival()

        return __init__

    wrap_once(BaseProcess, "__init__", make)


class _Arrival:
    """Restored in a child, it installs the filter there with the secrets that its parent knew."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _arrive, (sorted(_redactor.secrets), orphan.spawning())


def _arrive(secrets: list[str], parent: int | None) -> None:
    everywhere(secrets)
    orphan.end_if_not_child_of(parent)
