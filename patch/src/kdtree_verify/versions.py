"""Versions that a state file or a bug report names."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from . import __version__


def package_version() -> str:
    """The installed wheel's version; the source tree's own where no wheel is installed."""
    return _installed("kdtree-verify") or __version__


def versions() -> dict[str, str | None]:
    """Versions of what computes together here; torch's only where it is imported already."""
    torch = sys.modules.get("torch")
    return {
        "kdtree_verify": package_version(),
        "sglang": _installed("sglang"),
        "torch": torch.__version__ if torch else _installed("torch"),
        "cuda": torch.version.cuda if torch else None,
    }


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
