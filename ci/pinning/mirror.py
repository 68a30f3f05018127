"""ci/mirror HOST/PREFIX [KEY...]: copies pinned images into a registry of yours; prints what has builds use it.

KEY is an image of ci/pins.toml; without any, the two that the image is built on. An image goes to HOST/PREFIX/NAME
under its digest and its tag, with every platform and byte for byte: its digest stays. What is there already is not
sent again. Log in before (docker login HOST). KDTREE_MIRROR, where it is set, is copied from.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

from command_line import Parser
from oci import names
from oci.client import INDEX_TYPES, Client, Manifest
from oci.errors import EXIT_INTERRUPTED, RegistryError

from . import lockfile, upstream
from .lockfile import PinsError
from .uses import BUILT_ON


def main(argv: list[str]) -> int:
    parser = Parser(prog="ci/mirror", description=__doc__)
    parser.add_argument("prefix")
    parser.add_argument("keys", nargs="*", default=BUILT_ON)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    prefix = options.prefix.rstrip("/")
    try:
        pins = lockfile.load()
        for key in options.keys:
            print(f"mirror: {copy(pins, key, prefix)}", file=sys.stderr, flush=True)
    except (PinsError, RegistryError) as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print(
            "kdtree: interrupted: no tag was given. Fix: run it again; what is there is not sent twice", file=sys.stderr
        )
        return EXIT_INTERRUPTED
    print(f"export KDTREE_MIRROR={prefix}")
    return 0


def copy(pins: dict[str, Any], key: str, prefix: str) -> str:
    """Copies one pinned image; its name there. The tag is given last: what has one is whole. Raises RegistryError."""
    lockfile.get(pins, f"images.{key}")  # says which keys there are
    image = pins["images"][key]
    source, target = upstream.client(image["name"]), Client(names.repository(f"{prefix}/{image['name']}"))
    pinned = source.manifest(image["digest"])
    there = target.digest(image["tag"])
    if there not in (None, pinned.digest):
        raise RegistryError(
            f"{target.repository.name}:{image['tag']} is {there}. Fix: another PREFIX; a tag never moves"
        )
    for manifest in _children_first(source, pinned):
        _blobs(source, target, manifest)
        target.put_manifest(manifest, manifest.digest)
    target.put_manifest(pinned, image["tag"])
    return f"{target.repository.name}:{image['tag']}@{pinned.digest}"


def _children_first(source: Client, manifest: Manifest) -> Iterator[Manifest]:
    """What a manifest names, then itself: a registry takes no index of what it has not."""
    if manifest.media_type in INDEX_TYPES:
        for entry in manifest.parsed()["manifests"]:
            yield from _children_first(source, source.manifest(entry["digest"]))
    yield manifest


def _blobs(source: Client, target: Client, manifest: Manifest) -> None:
    if manifest.media_type in INDEX_TYPES:
        return
    parsed = manifest.parsed()
    for part in (parsed["config"], *parsed["layers"]):
        digest, size = part["digest"], part["size"]
        if target.has_blob(digest):
            continue
        print(f"mirror: {digest[:19]}… {size:,} bytes", file=sys.stderr, flush=True)
        with source.blob(digest, size) as blob:
            target.upload(digest, size, blob)


def contexts(pins: dict[str, Any]) -> dict[str, str]:
    """Build contexts that take the bases from the mirror that KDTREE_MIRROR names; none where it names none."""
    prefix = upstream.mirror()
    pinned = [lockfile.get(pins, f"images.{key}") for key in BUILT_ON] if prefix else []
    return {image: f"docker-image://{prefix}/{image}" for image in pinned}
