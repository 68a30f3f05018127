"""The image built twice from one commit, by one engine, from checkouts that are alike in nothing else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from imaging import recipe
from imaging.build import build, buildx
from imaging.errors import output
from standin import ROOT


@dataclass(frozen=True)
class Way:
    """How one of the checkouts is made: where, with which umask, and of which age its files are.

    Attributes:
        mtime: Seconds since 1970; None for the time at which they are checked out.
    """

    name: str
    folder: str
    umask: int
    mtime: int | None


WAYS = (
    Way("A", "a", 0o022, None),
    Way("B", "in another place/deeper, with spaces/checkout", 0o077, 1_000_000_000),
)


@dataclass(frozen=True)
class Built:
    """What one build left, and how it went."""

    way: Way
    source: Path
    archive: Path
    artifacts: Path
    began: str
    seconds: float


def build_way(way: Way, folder: Path, commit: str, archs: str, contexts: Mapping[str, str], *options: str) -> Built:
    """Checks out a commit and builds it from scratch: the image as an archive, and what is compiled alone.

    Raises:
        ImageError: The build failed.
    """
    began = time.time()
    source = checkout(way, folder, commit)
    archive, artifacts = folder / f"{way.name}.tar", folder / f"{way.name}-artifacts"
    shutil.rmtree(artifacts, ignore_errors=True)  # or what an earlier run left would be compared, too
    arguments = recipe.arguments(source, archs, contexts)
    # Without this the second build would find the first one's compiled stages, whatever --no-cache says of its own.
    output(*buildx(), "prune", "--all", "--force")
    whole = f"--output=type=oci,dest={archive},rewrite-timestamp=true"
    build(source, arguments, contexts, *options, "--no-cache", whole)
    # From the cache of the build just made: nothing is compiled for it.
    build(source, arguments, contexts, *options, "--target=artifacts", f"--output=type=local,dest={artifacts}")
    when = datetime.fromtimestamp(began, UTC).isoformat(" ", "seconds")
    return Built(way, source, archive, artifacts, when, round(time.time() - began, 1))


def checkout(way: Way, folder: Path, commit: str) -> Path:
    """A clone at a commit, made anew."""
    source = folder / way.folder
    shutil.rmtree(source, ignore_errors=True)
    before = os.umask(way.umask)
    try:
        output("git", "clone", "--quiet", "--no-hardlinks", "--no-checkout", ROOT, source)
        output("git", "checkout", "--quiet", "--detach", commit, folder=source)
    finally:
        os.umask(before)
    if way.mtime is not None:
        for path in source.rglob("*"):
            if ".git" not in path.relative_to(source).parts:
                os.utime(path, (way.mtime, way.mtime), follow_symlinks=False)
    return source
