"""OCI archives made by hand, as buildx writes them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class File:
    """A member of a layer."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    mtime: int = 1_000_000_000
    uid: int = 0
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    owner: str = ""
    extended: dict[str, str] = field(default_factory=dict)

    def member(self) -> tarfile.TarInfo:
        found = tarfile.TarInfo(self.path)
        found.size, found.mode, found.mtime, found.uid = len(self.content), self.mode, self.mtime, self.uid
        found.type, found.linkname = self.kind, self.target
        found.uname, found.pax_headers = self.owner, self.extended
        return found


@dataclass(frozen=True)
class Image:
    """What an archive is made of; `replaced` are bytes that a blob holds in place of those of its digest."""

    layers: tuple[tuple[File, ...], ...] = ((),)
    labels: dict[str, str] = field(default_factory=dict)
    level: int = 6
    attested: bool = False
    damaged: bool = False


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar(files: tuple[File, ...]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for file in files:
            archive.addfile(file.member(), io.BytesIO(file.content))
    return made.getvalue()


def wheel(members: dict[str, bytes], *, mode: int = 0o644, year: int = 2001) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
            member.external_attr = mode << 16
            archive.writestr(member, content)
    return made.getvalue()


def write(path: Path, image: Image) -> Path:
    blobs: dict[str, bytes] = {}

    def kept(content: bytes, media_type: str) -> dict[str, Any]:
        blobs[sha256(content)] = content
        return {"mediaType": media_type, "digest": sha256(content), "size": len(content)}

    def document(told: dict[str, Any], media_type: str) -> dict[str, Any]:
        return kept(json.dumps(told, sort_keys=True).encode(), media_type)

    tars = [tar(files) for files in image.layers]
    layers = [kept(gzip.compress(one, image.level, mtime=0), LAYER) for one in tars]
    config = {
        "config": {"Labels": image.labels},
        "rootfs": {"type": "layers", "diff_ids": [sha256(one) for one in tars]},
        "history": [{"created_by": "LABEL", "empty_layer": True}]
        + [{"created_by": f"RUN /bin/sh -c step {number} # buildkit"} for number in range(len(tars))],
    }
    manifest = {"config": document(config, "application/vnd.oci.image.config.v1+json"), "layers": layers}
    described = document(manifest, "application/vnd.oci.image.manifest.v1+json")
    if image.attested:
        attestation = document({"layers": []}, "application/vnd.oci.image.manifest.v1+json")
        attestation["annotations"] = {"vnd.docker.reference.type": "attestation-manifest"}
        described = document({"manifests": [described, attestation]}, "application/vnd.oci.image.index.v1+json")
    if image.damaged:
        blobs[layers[0]["digest"]] += b"more"
    files = [File("index.json", json.dumps({"manifests": [described]}).encode())]
    files += [File(f"blobs/{digest.replace(':', '/')}", content) for digest, content in blobs.items()]
    path.write_bytes(tar(tuple(files)))
    return path
