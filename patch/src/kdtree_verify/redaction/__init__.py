"""Keeps secrets out of the log: what the server's arguments and environment hold of them, and the filter for it.

The standard library only (and yaml, where a --config file has to be read): every process of the server imports this.
"""

from .install import everywhere, hide
from .redactor import HIDDEN, Redactor
from .secrets import find, is_secret_option

__all__ = ["HIDDEN", "Redactor", "everywhere", "find", "hide", "is_secret_option"]
