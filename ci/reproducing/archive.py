"""An image as an OCI archive: its platform manifest, its configuration, and its layers as tars."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

INDEX = "index.json"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class ArchiveError(Exception):
    """This is no archive of one image; the text is one line."""


@dataclass(frozen=True)
class Layer:
    """One layer, and the step of the recipe that made it."""

    number: int
    digest: str
    diff_id: str
    step: str


class Archive:
    """Reads an archive that `buildx --output type=oci` wrote. Raises ArchiveError where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115  # as long as this object
            self._members = {member.name.removeprefix("./"): member for member in self._tar.getmembers()}
            self.manifest_digest = self._platform(json.load(self._open(INDEX))["manifests"])
            self.manifest = self.document(self.manifest_digest)
            self.config_digest: str = self.manifest["config"]["digest"]
            self.config = self.document(self.config_digest)
            self.layers = self._layers()
        except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"{path}: {error or type(error).__name__}"
            raise ArchiveError(f"no OCI archive of one image: {said}. Fix: --output type=oci,dest=FILE") from error

    def _open(self, name: str) -> IO[bytes]:
        member = self._tar.extractfile(self._members[name])
        if member is None:
            raise ValueError(f"{name} is no file")
        return member

    def _platform(self, described: list[dict[str, Any]]) -> str:
        """The digest of the one image, through indexes and past attestations, which carry times."""
        images = [one for one in described if "vnd.docker.reference.type" not in one.get("annotations", {})]
        if len(images) != 1:
            raise ValueError(f"{len(images)} images")
        digest: str = images[0]["digest"]
        inner = self.document(digest)
        return self._platform(inner["manifests"]) if "manifests" in inner else digest

    def _layers(self) -> list[Layer]:
        steps = [step.get("created_by", "") for step in self.config.get("history", []) if not step.get("empty_layer")]
        digests = [layer["digest"] for layer in self.manifest["layers"]]
        steps += ["a step that the image does not tell of"] * (len(digests) - len(steps))
        ids = self.config["rootfs"]["diff_ids"]
        return [Layer(number, *told) for number, told in enumerate(zip(digests, ids, steps, strict=False), 1)]

    def document(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.load(self.blob(digest))
        return found

    def blob(self, digest: str) -> IO[bytes]:
        return self._open("blobs/" + digest.replace(":", "/"))

    def damaged(self) -> list[str]:
        """The digests of manifest, configuration and layers whose bytes are others; a name alone proves nothing."""
        named = {self.manifest_digest, self.config_digest, *(layer.digest for layer in self.layers)}
        return sorted(digest for digest in named if not self._holds(digest))

    def _holds(self, digest: str) -> bool:
        name = "blobs/" + digest.replace(":", "/")
        if name not in self._members:
            return False
        with self._open(name) as content:
            return f"sha256:{hashlib.file_digest(cast(Any, content), 'sha256').hexdigest()}" == digest

    @contextmanager
    def unpacked(self, layer: Layer) -> Iterator[tarfile.TarFile]:
        """A layer's tar, as a stream. Raises ArchiveError where it cannot be read."""
        start = self.blob(layer.digest).read(4)
        content = self.blob(layer.digest)
        try:
            if start.startswith(_ZSTD):
                with _zstd(content) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
                    yield tar
            else:
                plain = cast(IO[bytes], gzip.GzipFile(fileobj=content)) if start.startswith(_GZIP) else content
                with tarfile.open(fileobj=plain, mode="r|") as tar:
                    yield tar
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ArchiveError(f"layer {layer.number} of {self.path.name} cannot be read: {error}") from error


@contextmanager
def _zstd(content: IO[bytes]) -> Iterator[IO[bytes]]:
    """Python reads zstd from 3.14 on; the program does it everywhere."""
    if shutil.which("zstd") is None:
        raise ArchiveError("a layer is compressed with zstd, and there is no zstd on PATH. Fix: install it")
    with tempfile.NamedTemporaryFile() as packed:
        shutil.copyfileobj(content, packed)
        packed.flush()
        with subprocess.Popen(["zstd", "-dcq", packed.name], stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            yield program.stdout
