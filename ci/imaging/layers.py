"""The layers that our steps add to a base, file by file: what `docker image save` writes, read as it comes.

Nothing is written to disk, for a real image has 30 GB. Of its blobs only small ones are kept, in memory: a layer of
ours is one, or the image is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from .errors import ImageError

LARGEST_BLOB = 32 << 20
"""Of what is kept: twice what all of ours may have together (ci/shipping.toml)."""
FIRST_STEP = "/check_base.py"
"""Ours begin with the check of the base."""
_REMOVED = ".wh."
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


@dataclass(frozen=True)
class Entry:
    """A file, folder or link that a layer holds; or one of an earlier layer that it removes."""

    path: str
    kind: str
    """file, folder, link, removed."""
    bytes: int
    mode: int
    sha256: str
    """Of a file; else empty."""


@dataclass(frozen=True)
class Layer:
    """What one step of the Dockerfile left.

    Attributes:
        step: The instruction, as the image's history tells it.
        digest: The blob's, as the engine keeps it.
        stored_bytes: The blob's size.
        archive: The blob: a tar, compressed or not.
    """

    step: str
    digest: str
    stored_bytes: int
    archive: bytes

    def entries(self) -> Iterator[Entry]:
        """What the layer holds, in its order."""
        for member, content in self.contents():
            folder, _, name = member.name.rpartition("/")
            if name.startswith(_REMOVED):
                name = name.removeprefix(_REMOVED)
                yield Entry(f"/{folder}/{name}", "removed", 0, 0, "")
            else:
                kind = "folder" if member.isdir() else "link" if member.issym() or member.islnk() else "file"
                sha256 = hashlib.sha256(content).hexdigest() if kind == "file" else ""
                yield Entry(f"/{member.name}", kind, len(content), member.mode, sha256)

    def contents(self) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """Each member of the tar with its bytes. Raises ImageError where it is none."""
        try:
            with tarfile.open(fileobj=io.BytesIO(self.archive)) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isreg() else None
                    yield member, file.read() if file else b""
        except tarfile.TarError as error:
            fix = "an engine that compresses layers with gzip, or not at all"
            raise ImageError(f"layer {self.digest} cannot be read: {error}. Fix: {fix}") from error


@dataclass(frozen=True)
class Saved:
    """An image: its configuration as the engine keeps it, and the layers that our steps added."""

    config: dict[str, Any]
    added: list[Layer]


def save(image: str) -> Saved:
    """Reads an image that the engine has. Raises ImageError where it cannot, in one line."""
    command = ["docker", "image", "save", image]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        assert saving.stderr is not None
        try:
            blobs, sizes = _blobs(saving.stdout)
        except tarfile.TarError:
            blobs, sizes = {}, {}
        said = saving.stderr.read().decode(errors="replace").strip().splitlines()
    if saving.returncode != 0 or "index.json" not in blobs:
        why = said[-1] if said else "the engine's answer ended early"
        raise ImageError(f"image {image} cannot be read: {why}. Fix: its name, or Docker Engine 25 or newer")
    return _image(blobs, sizes)


def _blobs(stream: IO[bytes]) -> tuple[dict[str, bytes], dict[str, int]]:
    """By name in the archive: the bytes of the small files, and the size of each."""
    blobs, sizes = {}, {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            sizes[member.name] = member.size
            if member.isreg() and member.size <= LARGEST_BLOB:
                file = archive.extractfile(member)
                assert file is not None
                blobs[member.name] = file.read()
    return blobs, sizes


def _image(blobs: dict[str, bytes], sizes: dict[str, int]) -> Saved:
    def document(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(blobs[_place(digest)])
        return found

    (described,) = json.loads(blobs["index.json"])["manifests"]
    manifest = document(described["digest"])
    if manifest.get("mediaType") in _INDEXES:
        manifest = document(manifest["manifests"][0]["digest"])
    config = document(manifest["config"]["digest"])
    steps = [step for step in config["history"] if not step.get("empty_layer")]
    first = next((number for number, step in enumerate(steps) if FIRST_STEP in step.get("created_by", "")), None)
    if first is None or len(steps) != len(manifest["layers"]):
        raise ImageError("the image's history does not tell our steps from its base's. Fix: build it with ci/image")
    added = []
    for step, layer in list(zip(steps, manifest["layers"], strict=True))[first:]:
        name = _place(layer["digest"])
        if name not in blobs:
            said = f"{sizes.get(name, 0):,} bytes by {step['created_by'][:100]}"
            raise ImageError(f"the image adds too much to its base: {said}. Fix: what that step leaves behind")
        added.append(Layer(step["created_by"], layer["digest"], sizes[name], blobs[name]))
    return Saved(config, added)


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
