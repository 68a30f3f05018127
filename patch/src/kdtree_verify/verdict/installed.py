"""Whether what is installed here is what was measured."""

from __future__ import annotations

import hashlib

from ..config import Config, Device
from ..evidence.setup import Setup
from ..native.library import FILE_NAMES
from ..versions import versions


def differences(setup: Setup, config: Config) -> list[str]:
    """In what they differ. What is not installed here at all, as where a folder was copied to, is no difference."""
    here = versions() | {"library": _library(setup, config)}
    names = {"kdtree_verify": "KDTree", "sglang": "SGLang", "library": "kernel library"}
    return [
        f"{label} {_short(here[name])} is installed, {_short(getattr(setup, name))} was measured"
        for name, label in names.items()
        if here[name] is not None and here[name] != getattr(setup, name)
    ]


def _library(setup: Setup, config: Config) -> str | None:
    name = FILE_NAMES[Device.CPU if setup.library_kind == "host" else Device.CUDA]
    try:
        return hashlib.sha256((config.library_dir / name).read_bytes()).hexdigest()
    except OSError:
        return None


def _short(value: str | None) -> str:
    return (value or "none")[:12]
