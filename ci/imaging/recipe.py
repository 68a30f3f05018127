"""What the Dockerfile is given: build arguments of a checkout, contexts in place of its bases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import standin
from pinning import lockfile, mirror

from .errors import ImageError, output

GIVEN = ("docker", "kernel", "patch")
"""The folders of a checkout whose files reach the build, git's or not (.dockerignore)."""


def arguments(source: Path, archs: str, contexts: Mapping[str, str]) -> dict[str, str]:
    """The build's arguments for a checkout and what stands in place of its bases: what the labels say, and a time
    that depends on the commit alone."""
    pins = lockfile.load()
    name, digest = base(lockfile.get(pins, "images.sglang"), contexts)
    return {
        "KDTREE_ARCHS": archs,
        "KDTREE_REVISION": revision(source),
        "KDTREE_SOURCE": source_address(),
        "KDTREE_KERNEL_HASH": output("sh", "kernel/build.sh", "hash", "cuda", folder=source),
        "SOURCE_DATE_EPOCH": output("git", "log", "-1", "--format=%ct", folder=source),
        "KDTREE_CUDA": lockfile.get(pins, "cuda.version"),
        "KDTREE_BASE_NAME": name,
        "KDTREE_BASE_DIGEST": digest,
    }


def revision(source: Path) -> str:
    """The commit of a checkout; `-dirty` where files were changed, or are new in a folder that the build is given.

    Raises:
        ImageError: It is no repository of its own: the commit would be that of another one, around it.
    """
    commit = output("git", "rev-parse", "HEAD", folder=source)
    if within := output("git", "rev-parse", "--show-prefix", folder=source):
        raise ImageError(f"no git checkout of its own: it is {within} of another. Fix: a clone")
    changed = output("git", "status", "--porcelain", "--untracked-files=no", folder=source)
    new = output("git", "ls-files", "--others", "--exclude-per-directory=.gitignore", "--", *GIVEN, folder=source)
    # What begins with a dot no build is given.
    dirty = changed or [name for name in new.splitlines() if "/." not in name]
    return commit + ("-dirty" if dirty else "")


def source_address() -> str:
    """Where the sources are: KDTREE_SOURCE's word, or the repository that a GitHub workflow runs for."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return os.environ.get("KDTREE_SOURCE") or (f"{server}/{repository}" if server and repository else "unknown")


def base(pinned: str, contexts: Mapping[str, str]) -> tuple[str, str]:
    """Name and digest of what the image stands on: the pinned image's, or the stand-in's that takes its place."""
    name = contexts.get(pinned, pinned).removeprefix("docker-image://")
    if "@" not in name:
        return name, output("docker", "image", "inspect", "--format={{.Id}}", name)
    name, _, digest = pinned.partition("@")
    return f"docker.io/{name}", digest


def mirror_contexts() -> dict[str, str]:
    """The contexts that take the bases from the mirror that KDTREE_MIRROR names (ci/mirror); none without one."""
    return mirror.contexts(lockfile.load())


def stand_in_contexts() -> dict[str, str]:
    """The contexts that put stand-ins in place of the bases, and wheels in place of the index."""
    wheels = standin.parts("image", ("runtime-added",), everything=True)
    return standin.contexts() | {"wheels": str(wheels)}
