"""The image as it was built, by the engine that has it: its description, what it adds, what its libraries say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from imaging.errors import ImageError, output

from .errors import ShippingError
from .files import REPORT, read


@dataclass(frozen=True)
class Built:
    """An image that ci/image has built.

    Attributes:
        id: The engine's; its manifest's digest where the engine keeps images as they are pushed.
        created: The commit's time.
        labels: The image's.
        added: What our layers hold: path to SHA-256, of files.
        libraries: What `kdtree version --json` tells of each kernel library.
    """

    id: str
    created: str
    labels: dict[str, str]
    added: dict[str, str]
    libraries: list[dict[str, Any]]


def look_at(image: str) -> Built:
    """Raises ShippingError where the engine has no such image, or another one was built last."""
    try:
        (found,) = json.loads(output("docker", "image", "inspect", image))
    except ImageError as error:
        raise ShippingError(f"no such image: {image}: {error}. Fix: ci/image, inside `ci/engine run`") from error
    report = read(REPORT, "build the image first: ci/image")
    if report["id"] != found["Id"]:
        what = f"build/image.json tells of {report['id'][:19]}, {image} is {found['Id'][:19]}"
        raise ShippingError(f"not the image that was built last: {what}. Fix: ci/image again, then this")
    files = [file for layer in report["added"] for file in layer["files"]]
    told = output("docker", "run", "--rm", "--network=none", image, "kdtree", "version", "--json")
    return Built(
        id=found["Id"],
        created=found["Created"],
        labels=found["Config"]["Labels"],
        added={file["path"]: file["sha256"] for file in files if file["kind"] == "file"},
        libraries=list(json.loads(told)["libraries"].values()),
    )
