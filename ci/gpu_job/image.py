"""The image by its digest: pulled where there is room, and with what tests it on top."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import wheelhouse
from first_building.host import UNPACKED
from imaging.build import buildx
from oci import names
from oci.client import Client
from pinning import lockfile
from pinning.uses import BUILT_ON

from .clean import TEST_NAME
from .engine import EXIT_UNAVAILABLE, ROOT, JobError, output

SPARE = 20 << 30  # bytes: the model, compiled kernels, results
WHEELS = "image-test"
CARRIED = (
    *("Makefile", "pyproject.toml", "bench", "ci", "kernel", "proof", "tests"),
    *("patch/pyproject.toml", "patch/tools"),
)
"""Of the checkout. Not patch/src: what is tested is the package that the image has."""


def pull(image: str) -> None:
    """Pulls it, where the registry has it and this machine has room. Raises JobError or RegistryError."""
    repository, digest = names.by_digest(image)
    if has(image):
        return
    client = Client(repository)
    manifest = client.manifest(digest).parsed()
    if "layers" not in manifest:
        raise JobError(f"not an image of one platform: {image}. Fix: the digest that ci/push printed")
    need_room(sum(layer["size"] for layer in manifest["layers"]) * UNPACKED + SPARE)
    if subprocess.run(["docker", "pull", "--quiet", image], stdout=sys.stderr, check=False).returncode != 0:
        raise JobError(f"not pulled: {image}: the line above says why. Fix: that, then again: whole layers are kept")


def has(image: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


def need_room(needed: int) -> None:
    """Raises JobError where the engine's disk has less than that many bytes free."""
    folder = Path(output("info", "--format={{.DockerRootDir}}"))
    while not folder.exists():  # an engine elsewhere: then it is not this disk, and the pull tells
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise JobError(
            f"too little room for the image: {folder}: {needed >> 30} GiB needed, {free >> 30} GiB free. "
            "Fix: docker system df; ci/gpu-job clean --keep IMAGE; or a larger disk",
            EXIT_UNAVAILABLE,
        )


def with_tests(image: str) -> str:
    """The Dockerfile's test stage on that image: built where it is not there; returns its name, a local tag.

    Raises:
        JobError: The image is not here, or the stage cannot be built.
        ImageError: No buildx.
    """
    digest = names.by_digest(image)[1]
    if not has(image):
        raise JobError(f"not here: {image}. Fix: ci/gpu-job pull {image}")
    revision = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    test_image = f"{TEST_NAME}:{digest.removeprefix('sha256:')[:12]}-{revision.stdout.strip() or 'unknown'}"
    with tempfile.TemporaryDirectory(prefix="kdtree-checkout-") as folder:
        carry(Path(folder))
        command = [*buildx(), "build", "--progress=plain", "--provenance=false", "--load", "--network=none"]
        # Of the bases BuildKit would ask the registry, though nothing is built on them now; by then they may be pruned.
        replaced = ("runtime", *(lockfile.get(lockfile.load(), f"images.{key}") for key in BUILT_ON))
        command += [f"--build-context={name}=docker-image://{image}" for name in replaced]
        command += [f"--build-context=checkout={folder}"]
        command += ["--target=test", f"--tag={test_image}", "--file=docker/Dockerfile", "."]
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode != 0:
            raise JobError(f"the test stage on {image} was not built: the lines above say why. Fix: that")
    return test_image


def carry(folder: Path) -> None:
    """Lays out what the test stage copies: `tree`, this checkout's files that git knows, and `wheels`."""
    tree, wheels = folder / "tree", folder / "wheels"
    listed = subprocess.run(["git", "ls-files", "-z", "--", *CARRIED], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    wheelhouse.fill([WHEELS])
    wheels.mkdir()
    wanted = lockfile.wheels(lockfile.load(), WHEELS)
    (wheels / "requirements.txt").write_text("".join(f"{wheel.pip_line}\n" for wheel in wanted))
    files = wheelhouse.present()
    for wheel in wanted:
        shutil.copy2(files[wheel.normalized, wheel.version], wheels)
