"""What a stand-in run asks in place of the real registries: one on loopback with a small image for each pinned one.

Names and tags are the pinned ones', digests are their own. They answer for nothing but the asking: the build is on
ci/standin.py's bases.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import registry_server
from imaging.build import buildx
from pinning import lockfile
from pinning.shape import PLATFORM

from .site import ROOT, Pinned, pinned

LABEL = "ai.sglang.build.commit"


class Unavailable(RuntimeError):
    """There is no stand-in registry here; the text is one line."""


@contextmanager
def registry(folder: Path, *, deletes: bool = False) -> Iterator[tuple[Pinned, ...]]:
    """A registry on loopback, and the images in it, as they would be pinned. Raises Unavailable."""
    if registry_server.binary() is None:
        done = subprocess.run([ROOT / "ci" / "registry"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(done.stderr.strip().removeprefix("kdtree: "))
    with registry_server.running(folder, deletes=deletes) as running:
        yield tuple(_push(running.address, image) for image in pinned())


def _push(address: str, image: Pinned) -> Pinned:
    """Builds and pushes one; nothing runs in it."""
    name = f"{address}/{image.name}"
    commit = lockfile.get(lockfile.load(), "sglang.commit")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        metadata = Path(folder, "metadata.json")
        done = subprocess.run(
            [
                *(*buildx(), "build", "--quiet", f"--platform={PLATFORM}", f"--label={LABEL}={commit}-stand-in"),
                # With an attestation it is an index, as most registries' images are.
                f"--provenance={'true' if image.key == 'cuda-devel' else 'false'}",
                *(f"--output=type=image,name={name}:{image.tag},push=true", f"--metadata-file={metadata}", folder),
            ],
            env=os.environ | {"SOURCE_DATE_EPOCH": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(f"{image.key}'s stand-in was not pushed: {done.stderr.strip().splitlines()[-1]}")
        digest = json.loads(metadata.read_text())["containerimage.digest"]
    return Pinned(image.key, name, image.tag, digest)
