"""What the Dockerfile is given: build arguments of a checkout, contexts in place of its bases."""

from __future__ import annotations

import os
from pathlib import Path

import standin

from .errors import output


def arguments(source: Path, archs: str) -> dict[str, str]:
    """The build's arguments for a checkout: what the labels say, and a time that depends on the commit alone."""
    dirty = output("git", "status", "--porcelain", "--untracked-files=no", folder=source)
    return {
        "KDTREE_ARCHS": archs,
        "KDTREE_REVISION": output("git", "rev-parse", "HEAD", folder=source) + ("-dirty" if dirty else ""),
        "KDTREE_SOURCE": os.environ.get("KDTREE_SOURCE", "unknown"),
        "KDTREE_KERNEL_HASH": output("sh", "kernel/build.sh", "hash", "cuda", folder=source),
        "SOURCE_DATE_EPOCH": output("git", "log", "-1", "--format=%ct", folder=source),
    }


def stand_in_contexts() -> dict[str, str]:
    """The contexts that put stand-ins in place of the bases, and wheels in place of the index."""
    wheels = standin.parts("image", ("runtime-added",), everything=True)
    return standin.contexts() | {"wheels": str(wheels)}
