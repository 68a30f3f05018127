"""ci/promote IMAGE@DIGEST [TAG]: gives an image in a registry a tag that no image has; prints NAME:TAG@DIGEST.

Without TAG it is what the image's labels say: VERSION-COMMIT, the commit's first twelve digits. A tag that is there for
another digest is left, and that is an error; for the same digest there is nothing to do. Nothing is pulled. Of two that
give one tag at the same time one ends with an error.
"""

from __future__ import annotations

import re
import time

from command_line import Parser

from . import names
from .client import Client, Manifest, document
from .errors import RegistryError, in_one_line

SETTLED = 2.0
"""Seconds after which whoever asked for a tag before it was given has given theirs."""
_VERSION = "org.opencontainers.image.version"
_REVISION = "org.opencontainers.image.revision"


def main() -> int:
    parser = Parser(prog="ci/promote", description=__doc__)
    parser.add_argument("image")
    parser.add_argument("tag", nargs="?")
    options = parser.parse_args()
    return in_one_line(lambda: promote(options.image, options.tag))


def promote(image: str, tag: str | None = None) -> str:
    """Tags the image; returns its name with the tag and the digest. Raises RegistryError."""
    repository, digest = names.by_digest(image)
    if tag is not None:
        names.tag(tag)
    client = Client(repository)
    manifest = client.manifest(digest)
    if tag is None:
        tag = _tag_of(client, manifest)
    there = client.digest(tag)
    if there not in (None, digest):
        raise RegistryError(
            f"the tag is taken: {repository.name}:{tag} is {there}, not {digest}. "
            "Fix: another version or commit; a tag never moves"
        )
    if there is None:
        client.put_manifest(manifest, tag)
        _need_alone(client, tag, digest)
    return f"{repository.name}:{tag}@{digest}"


def _need_alone(client: Client, tag: str, digest: str) -> None:
    """Raises RegistryError where somebody else, who saw no tag either, gave it to another image at the same time: no
    registry gives a tag only where there is none, so that of the two the later one stays."""
    time.sleep(SETTLED)
    if (there := client.digest(tag)) != digest:
        what = f"{client.repository.name}:{tag} was given twice at once, and is {there}, not {digest}"
        raise RegistryError(f"{what}. Fix: see who else writes there; promote it under another tag")


def _tag_of(client: Client, manifest: Manifest) -> str:
    """VERSION-COMMIT of the image's labels. Raises RegistryError where they name no clean commit."""
    config = document(client.small_blob(manifest.config), manifest.config)
    labels = config.get("config", {}).get("Labels") or {}
    version, revision = labels.get(_VERSION, ""), labels.get(_REVISION, "")
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise RegistryError(f"label {_REVISION} is no commit: {revision!r}. Fix: build from a clean checkout")
    return names.tag(f"{version}-{revision[:12]}")
