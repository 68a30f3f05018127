"""A built image gets its name last, when it is whole and was looked at: until then the name is the old image's.

BuildKit would name it itself, and on some failures of its exporters it does so although the build fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import standin

from . import interruption
from .errors import ImageError, output

Build = Callable[..., None]
"""Builds with the options of buildx that it is called with."""
Describe = Callable[[str], dict[str, object]]
"""What there is to say of an image by its id; raises ImageError where it may not have the name."""


def build_and_name(tag: str, build: Build, describe: Describe, report: Path, archive: Path | None) -> dict[str, object]:
    """Builds an image, in the engine or as an OCI archive that is then loaded, names it and writes its report.

    The report is of the image that the tag names, or is not there. Whatever ends this early, kill -9 included, leaves
    the tag and the report as they were, or the tag moved and no report.
    """
    with tempfile.TemporaryDirectory() as folder:
        image = _loaded(build, archive) if archive else _built(build, Path(folder) / "metadata.json")
    try:
        found = describe(image)
    except BaseException:
        _discard(image)
        raise
    report.parent.mkdir(exist_ok=True)
    partial = report.with_suffix(".part")
    partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    interruption.ignore()  # three steps of milliseconds, that belong together
    report.unlink(missing_ok=True)
    output("docker", "image", "tag", image, tag)
    partial.replace(report)
    return found


def _discard(image: str) -> None:
    """Removes an image that may not have the name; not one that has it already, or another: that would take them."""
    command = ["docker", "image", "inspect", "--format={{json .RepoTags}}", image]
    named = subprocess.run(command, capture_output=True, text=True, check=False)
    if named.returncode == 0 and not json.loads(named.stdout):
        subprocess.run(["docker", "image", "rm", image], capture_output=True, check=False)


def _built(build: Build, metadata: Path) -> str:
    """The id of an image that the engine built, without a name."""
    # As --load does it, but with OCI's types of layers: Docker's have none for zstd, and a registry's image that names
    # such a one all the same cannot be pulled.
    build("--output=type=docker,oci-mediatypes=true", f"--metadata-file={metadata}")
    told = json.loads(metadata.read_text())
    # An engine knows an image by its manifest or, with the older store, by its configuration.
    ids = [told[key] for key in ("containerimage.digest", "containerimage.config.digest") if key in told]
    return next((found for found in ids if standin.exists(found)), "") or _lost("what it built")


def _loaded(build: Build, archive: Path) -> str:
    """The id of an image whose archive was built, with the commit's time on all files, and loaded."""
    partial = archive.with_suffix(".part")
    try:
        build(f"--output=type=oci,dest={partial},rewrite-timestamp=true")
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    said = output("docker", "image", "load", "--input", archive)
    loaded = re.search(r"Loaded image ID: (\S+)", said)
    return loaded[1] if loaded and standin.exists(loaded[1]) else _lost(archive.name)


def _lost(what: str) -> str:
    raise ImageError(f"the engine does not have {what}. Fix: Docker Engine 25 or newer with its default builder")
