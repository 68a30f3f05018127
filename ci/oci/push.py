"""ci/push IMAGE REPOSITORY: pushes an image of the engine by its digest, without a tag; prints REPOSITORY@DIGEST.

What is sent is what the engine has, byte for byte, as `docker save` gives it; what the registry has is not sent. The
manifest goes last: a push that ends early leaves layers that nothing names, and again it goes on where it was.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from typing import IO, Any

from command_line import Parser

from . import names
from .client import INDEX_TYPES, MANIFEST_TYPES, Client, Manifest, digest_of
from .errors import RegistryError, in_one_line

_SMALL = 4 << 20  # bytes: manifests and configurations are; a layer may be


def main() -> int:
    parser = Parser(prog="ci/push", description=__doc__)
    parser.add_argument("image")
    parser.add_argument("repository")
    options = parser.parse_args()
    return in_one_line(lambda: push(options.image, Client(names.repository(options.repository))))


def push(image: str, client: Client) -> str:
    """Pushes the image; returns its name by digest. Raises RegistryError."""
    _need_stored_layers()
    small: dict[str, bytes] = {}
    index: dict[str, Any] = {}
    with subprocess.Popen(["docker", "image", "save", image], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as saved:
        assert saved.stdout is not None
        assert saved.stderr is not None
        try:
            with tarfile.open(fileobj=saved.stdout, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is None:
                        continue
                    if member.name == "index.json":
                        index = json.load(content)
                    elif member.name.startswith("blobs/sha256/"):
                        _take(client, f"sha256:{member.name.rpartition('/')[2]}", member.size, content, small)
        except tarfile.TarError as error:
            raise RegistryError(
                f"the engine cannot give {image}: {_last(saved.stderr, error)}. Fix: build it"
            ) from error
        except BaseException:
            saved.kill()
            raise
        said = _last(saved.stderr, "its archive holds no image")
    if saved.returncode != 0 or not index.get("manifests"):
        raise RegistryError(f"the engine cannot give {image}: {said}. Fix: build it (ci/image)")
    manifest = _platform_manifest(index, small)
    _need(client, manifest, small)
    client.put_manifest(manifest, manifest.digest)
    return f"{client.repository.name}@{manifest.digest}"


def _need_stored_layers() -> None:
    """Only the containerd store keeps an image as it is pushed; elsewhere its digest would be another each time."""
    try:
        done = subprocess.run(["docker", "info", "--format={{json .DriverStatus}}"], capture_output=True, text=True)
    except OSError as error:
        raise RegistryError(f"no docker that runs: {error.strerror}. Fix: install it, or `ci/engine run`") from error
    if done.returncode != 0:
        raise RegistryError(f"no Docker engine answers: {done.stderr.strip()}. Fix: start it, or `ci/engine run`")
    if "io.containerd.snapshotter" not in done.stdout:
        raise RegistryError(
            "the engine does not keep images as they are pushed: its store is not containerd's. "
            'Fix: {"features": {"containerd-snapshotter": true}} in daemon.json, then build again'
        )


def _take(client: Client, digest: str, size: int, content: IO[bytes], small: dict[str, bytes]) -> None:
    """Uploads one blob of the archive unless the registry has it; keeps a small JSON one, which may be a manifest."""
    if size <= _SMALL:
        body = content.read()
        if body[:1] == b"{":
            small[digest] = body
        content = io.BytesIO(body)
    if client.has_blob(digest):
        return
    print(f"push: {digest[:19]}… {size:,} bytes", file=sys.stderr, flush=True)
    client.upload(digest, size, content)


def _platform_manifest(index: dict[str, Any], small: dict[str, bytes]) -> Manifest:
    """The one image of the archive: through an index of one platform, past attestations. Raises RegistryError."""
    found: list[Manifest] = []
    wanted = list(index["manifests"])
    while wanted:
        entry = wanted.pop()
        body = small[entry["digest"]]
        if entry["mediaType"] in INDEX_TYPES:
            wanted += json.loads(body)["manifests"]
        elif entry["mediaType"] in MANIFEST_TYPES and entry.get("platform", {}).get("os") != "unknown":
            found.append(Manifest(entry["mediaType"], body))
    if len({manifest.digest for manifest in found}) != 1:
        raise RegistryError(f"not one image but {len(found)}: no digest for them. Fix: name one of one platform")
    return found[0]


def _need(client: Client, manifest: Manifest, small: dict[str, bytes]) -> None:
    """All that the manifest names is in the registry: an engine may lack what it has unpacked. Raises RegistryError."""
    assert digest_of(small[manifest.digest]) == manifest.digest
    parsed = manifest.parsed()
    for part in (parsed["config"], *parsed["layers"]):
        if not client.has_blob(part["digest"]):
            raise RegistryError(
                f"the engine has no {part['digest']} any more, and the registry neither. Fix: pull the base again"
            )


def _last(stream: IO[bytes], otherwise: object) -> str:
    lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(otherwise)
