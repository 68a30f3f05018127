"""Names of images as Docker writes them, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import BadName

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*")
_DOCKER_HUB = "registry-1.docker.io"


@dataclass(frozen=True)
class Repository:
    """Where images of one name are.

    Attributes:
        host: The registry's, as it is connected to.
        path: The name there.
        name: Both, as it was written.
    """

    host: str
    path: str
    name: str


def repository(name: str) -> Repository:
    """A repository by its name, without a tag or digest. Raises BadName."""
    host, slash, path = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = "docker.io", name
    if host in ("docker.io", "index.docker.io"):
        host, path = _DOCKER_HUB, path if "/" in path else f"library/{path}"
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
        raise BadName(f"no image's repository: {name!r}. Fix: HOST/NAME in lower case, without tag or digest")
    return Repository(host, path, name)


def by_digest(image: str) -> tuple[Repository, str]:
    """Repository and digest of NAME@sha256:… or NAME:TAG@sha256:…, where the tag says nothing; raises BadName
    on any other form, a tag alone among them."""
    name, at, digest = image.partition("@")
    name = re.sub(r"(?<=/)([^/:]+):[^/:]+$", r"\1", name)
    if not at or not DIGEST.fullmatch(digest):
        raise BadName(f"no image by digest: {image!r}. Fix: NAME@sha256: and 64 hexadecimal digits")
    return repository(name), digest


def tag(text: str) -> str:
    """The text, where it can be a tag. Raises BadName."""
    if not TAG.fullmatch(text) or text == "latest":
        raise BadName(f"no tag that stays what it is: {text!r}. Fix: letters, digits, . _ -, and not 'latest'")
    return text
