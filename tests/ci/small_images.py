"""Images of a few files, made by hand and put into a registry as any client would."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass

from oci import names
from oci.client import INDEX_TYPES, MANIFEST_TYPES, Client, Manifest, digest_of


@dataclass(frozen=True)
class Pushed:
    """An image that is in a registry.

    Attributes:
        index: Digest of its index.
        manifest: Digest of linux/amd64's manifest.
        layers: Digests of linux/amd64's layers.
    """

    index: str
    manifest: str
    layers: list[str]


def layer(files: dict[str, bytes]) -> bytes:
    """A layer with the files, by their paths in the image."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return content.getvalue()


def push(name: str, tag: str, layers: list[bytes], labels: dict[str, str]) -> Pushed:
    """Pushes an index of two platforms under a tag, and what it names."""
    client = Client(names.repository(name))
    entries, manifests = [], {}
    for architecture in ("arm64", "amd64"):
        config = {"os": "linux", "architecture": architecture, "config": {"Labels": labels}}
        config |= {"rootfs": {"type": "layers", "diff_ids": [digest_of(gunzipped(each)) for each in layers]}}
        body = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPES[0],
                "config": _blob(client, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
                "layers": [_blob(client, each, "application/vnd.oci.image.layer.v1.tar+gzip") for each in layers],
            }
        ).encode()
        manifests[architecture] = Manifest(MANIFEST_TYPES[0], body)
        client.put_manifest(manifests[architecture], manifests[architecture].digest)
        entry = {"mediaType": MANIFEST_TYPES[0], "digest": manifests[architecture].digest, "size": len(body)}
        entries.append(entry | {"platform": {"os": "linux", "architecture": architecture}})
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": entries}
    whole = Manifest(INDEX_TYPES[0], json.dumps(index).encode())
    client.put_manifest(whole, tag)
    return Pushed(whole.digest, manifests["amd64"].digest, [digest_of(each) for each in layers])


def gunzipped(content: bytes) -> bytes:
    import gzip

    return gzip.decompress(content)


def _blob(client: Client, content: bytes, media_type: str) -> dict[str, object]:
    digest = digest_of(content)
    client.upload(digest, len(content), io.BytesIO(content))
    return {"mediaType": media_type, "digest": digest, "size": len(content)}
