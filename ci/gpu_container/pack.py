"""Makes the two packs: Docker's engine, and the image's own layers. On a machine with a network, in `ci/engine run`."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import standin
from engine_clients import compose
from engine_debs import Debs
from engine_private import PACKAGES

from . import packs
from .base import DESCRIPTION
from .errors import ContainerError

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu-container"
ENGINE, IMAGE = BUILD / "engine.tar.xz", BUILD / "image.tar.xz"
TAG = "kdtree:gpu-container"

PROGRAMS = (
    *("usr/sbin/dockerd", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/sbin/runc", "usr/bin/docker"),
)
"""Of the engine's packages. Nothing publishes ports there, builds, or asks for an init."""
COMPOSE = "usr/libexec/docker/cli-plugins/docker-compose"
LARGEST_BLOB = 64 << 20  # bytes: this project's layers are far smaller, the stand-in's own are larger


def pack_engine() -> None:
    """Packs the programs that ci/engine takes for its own engine, and Compose; nothing to do where they are packed."""
    debs = Debs(ROOT / "build" / "engine" / "debs")
    root = debs.unpack(PACKAGES)
    plugin = compose(ROOT / "build")
    made_of = " ".join([*sorted(path.name for path in debs.archives.glob("*.deb")), plugin.parent.name, *PROGRAMS])
    stamp = BUILD / ".engine-made-of"
    if ENGINE.is_file() and stamp.is_file() and stamp.read_text() == made_of:
        return
    with tempfile.TemporaryDirectory() as folder:
        for source, name in [*((root / name, name) for name in PROGRAMS), (plugin, COMPOSE)]:
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755)
            # Debian's come without debug information; Compose's does not.
            subprocess.run(["strip", target], check=False, capture_output=True)
        packs.write(Path(folder), ENGINE)
    stamp.write_text(made_of)


def pack_image(archs: str) -> None:
    """Builds docker/Dockerfile on the stand-in bases, and packs what it added to its base."""
    build: list[str | Path] = [ROOT / "ci" / "image", "--stand-in", f"--tag={TAG}", f"--archs={archs}"]
    if subprocess.run(build, check=False).returncode != 0:
        raise ContainerError("the image was not built; the lines above say why")
    report = json.loads((ROOT / "build" / "image.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        take_layers(report["id"], report["base"], Path(folder))
        packs.write(Path(folder), IMAGE)


def take_layers(image: str, base: str, folder: Path) -> None:
    """Writes what `image` adds to `base` into the folder: DESCRIPTION and layers/. Raises ContainerError."""
    below = _inspect(base)
    inherited = len(below["RootFS"]["Layers"])
    (folder / "layers").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as saved:
        config, layers = _saved(image, Path(saved))
        if config["rootfs"]["diff_ids"][:inherited] != below["RootFS"]["Layers"]:
            raise ContainerError(f"{image} does not stand on {base}")
        for number, descriptor in enumerate(layers[inherited:]):
            content = _uncompressed(Path(saved), descriptor)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if digest != config["rootfs"]["diff_ids"][inherited + number]:
                raise ContainerError(f"layer {number} is not what the image says: {digest}")
            (folder / "layers" / f"{number:02}.tar").write_bytes(content)
    described = {"config": config, "base": {"layers": inherited, "config": below["Config"]}}
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=1))


def _inspect(image: str) -> dict[str, Any]:
    done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    return dict(found)


def _saved(image: str, blobs: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The image's configuration, and its layers' descriptors; what is small of its blobs goes to the folder."""
    wanted = re.compile(r"blobs/sha256/[0-9a-f]{64}|index\.json")
    with (
        subprocess.Popen(["docker", "image", "save", image], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        for member in tar:
            small = wanted.fullmatch(member.name) and member.size <= LARGEST_BLOB
            if small and (content := tar.extractfile(member)):
                (blobs / Path(member.name).name).write_bytes(content.read())
    if process.returncode != 0:
        raise ContainerError(f"docker image save failed with status {process.returncode}")
    document = json.loads((blobs / "index.json").read_text())
    while "manifests" in document:  # an index may name an index
        document = _blob(blobs, document["manifests"][0])
    return _blob(blobs, document["config"]), document["layers"]


def _blob(blobs: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads((blobs / descriptor["digest"].removeprefix("sha256:")).read_text()))


def _uncompressed(blobs: Path, descriptor: dict[str, Any]) -> bytes:
    kind = descriptor["mediaType"]
    content = (blobs / descriptor["digest"].removeprefix("sha256:")).read_bytes()
    if kind.endswith("gzip"):
        return gzip.decompress(content)
    if kind.endswith("tar"):
        return content
    raise ContainerError(f"a layer is neither plain nor gzip: {kind}")


def main(archs: str) -> None:
    """Both packs. Raises ContainerError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        pack_engine()
        pack_image(archs)
    except standin.FAILURES as error:
        raise ContainerError(str(error)) from error
    for archive in (ENGINE, IMAGE):
        print(f"gpu-container: {archive.relative_to(ROOT)}, {os.path.getsize(archive) / 2**20:.1f} MiB")
