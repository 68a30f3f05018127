"""What a registry has under a name that pins.toml pins, or might: asked by tag or digest, every answer checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from oci import names
from oci.client import INDEX_TYPES, Client, Manifest, document
from oci.errors import Missing, RegistryError


@dataclass(frozen=True)
class Found:
    """An image in a registry.

    Attributes:
        digest: Of the index, or of the manifest where there is no index.
        manifest: The platform's.
        labels: Of its configuration.
    """

    digest: str
    manifest: Manifest
    labels: dict[str, str]

    @property
    def layers(self) -> list[tuple[str, int]]:
        """Digest and size of each, oldest first."""
        return [(layer["digest"], layer["size"]) for layer in self.manifest.parsed()["layers"]]


def mirror() -> str:
    """HOST/PREFIX of the mirror that KDTREE_MIRROR names; empty where it names none."""
    return os.environ.get("KDTREE_MIRROR", "").rstrip("/")


def client(name: str) -> Client:
    """The repository of a pinned name: in the mirror, where there is one, else where it is from."""
    return Client(names.repository(f"{mirror()}/{name}" if mirror() else name))


def find(repository: Client, digest: str, platform: str) -> Found:
    """The image of that digest. Raises RegistryError where it is gone, or is not what its digest says."""
    manifest = repository.manifest(digest)
    if manifest.media_type in INDEX_TYPES:
        manifest = repository.manifest(_of_platform(repository, manifest.parsed(), platform))
    config = document(repository.small_blob(manifest.config), manifest.config)
    is_for = f"{config.get('os')}/{config.get('architecture')}"
    if is_for != platform:
        raise RegistryError(
            f"{repository.repository.name}@{digest} is for {is_for}, not {platform}. Fix: another image"
        )
    return Found(digest, manifest, config.get("config", {}).get("Labels") or {})


def find_tag(repository: Client, tag: str, platform: str) -> Found:
    """The image that a tag names now. Raises Missing where the tag is gone."""
    digest = repository.digest(tag)
    if digest is None:
        raise Missing(f"no such tag: {repository.repository.name}:{tag}: it was pruned. Fix: another tag, or a mirror")
    return find(repository, digest, platform)


def _of_platform(repository: Client, index: dict[str, Any], platform: str) -> str:
    for entry in index["manifests"]:
        about = entry.get("platform", {})
        if f"{about.get('os')}/{about.get('architecture')}" == platform:
            return str(entry["digest"])
    raise RegistryError(f"{repository.repository.name} has nothing for {platform} there. Fix: another image")
