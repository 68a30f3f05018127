"""What an image holds: its labels, and how many bytes each of our steps adds to the base."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass

from pinning import lockfile
from standin import ROOT

from .errors import ImageError, output


@dataclass(frozen=True)
class Layer:
    """What one step of a Dockerfile left: bytes on disk, and the step's first words."""

    size: int
    step: str


def history(image: str) -> tuple[list[Layer], list[Layer]]:
    """The steps that the base brought, and ours, oldest first. Ours begin with the check of the base."""
    lines = output("docker", "history", "--human=false", "--no-trunc", "--format={{.Size}}\t{{.CreatedBy}}", image)
    steps = [line.partition("\t") for line in reversed(lines.splitlines())]
    first = next(index for index, (_, _, step) in enumerate(steps) if "/check_base.py" in step)
    layers = [Layer(int(size), step[:100]) for size, _, step in steps]
    return layers[:first], layers[first:]


def check_labels(labels: dict[str, str]) -> None:
    """Asserts the labels that the base must bring: inside the build they cannot be seen."""
    assumed = tomllib.loads((ROOT / "docker" / "base-assumptions.toml").read_text(encoding="utf-8"))
    commit = lockfile.get(lockfile.load(), "sglang.commit")
    for label in assumed["labels"]["commit"]:
        found = labels.get(label, "")
        if not found.startswith(commit):
            fix = "pin the image and its commit together (ci/pins.toml, docker/Dockerfile)"
            raise ImageError(f"base image: not so: label {label} begins with {commit}: '{found}'. Fix: {fix}")


def report(image: str, tag: str, base: str, seconds: float) -> dict[str, object]:
    """What was built, for build/image.json. Raises ImageError on a wrong label."""
    (found,) = json.loads(output("docker", "image", "inspect", image))
    labels = found["Config"]["Labels"]
    check_labels(labels)
    before, added = history(image)
    return {
        "tag": tag,
        "id": found["Id"],
        "base": base,
        "base_bytes": sum(layer.size for layer in before),
        "added_bytes": sum(layer.size for layer in added),
        "added": [{"bytes": layer.size, "step": layer.step} for layer in added if layer.size],
        "labels": labels,
        "seconds": round(seconds, 1),
    }
