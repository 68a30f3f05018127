"""The one name that SGLang takes from here."""

from . import FlashMLASchedMeta

__all__ = ["FlashMLASchedMeta"]
