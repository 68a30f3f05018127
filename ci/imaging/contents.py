"""What an image holds: its labels, and file by file what our steps add to its base, which is held to a limit."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Iterable
from typing import Any

from pinning import lockfile
from standin import ROOT

from .errors import ImageError, output
from .layers import FIRST_STEP, Entry, save

POLICY = ROOT / "ci" / "shipping.toml"


def policy() -> dict[str, Any]:
    """What may be added: the first table of ci/shipping.toml."""
    table: dict[str, Any] = tomllib.loads(POLICY.read_text(encoding="utf-8"))["image"]
    return table


def base_bytes(image: str) -> int:
    """How many bytes of disk the base's steps take."""
    lines = output("docker", "history", "--human=false", "--no-trunc", "--format={{.Size}}\t{{.CreatedBy}}", image)
    steps = [line.partition("\t") for line in reversed(lines.splitlines())]
    first = next(index for index, (_, _, step) in enumerate(steps) if FIRST_STEP in step)
    return sum(int(size) for size, _, _ in steps[:first])


def check_labels(labels: dict[str, str]) -> None:
    """Asserts the labels that the base must bring: inside the build they cannot be seen."""
    assumed = tomllib.loads((ROOT / "docker" / "base-assumptions.toml").read_text(encoding="utf-8"))
    commit = lockfile.get(lockfile.load(), "sglang.commit")
    for label in assumed["labels"]["commit"]:
        found = labels.get(label, "")
        if not found.startswith(commit):
            fix = "pin the image and its commit together (ci/pins.toml, docker/Dockerfile)"
            raise ImageError(f"base image: not so: label {label} begins with {commit}: '{found}'. Fix: {fix}")


def check_added(entries: Iterable[Entry], limits: dict[str, Any]) -> None:
    """Raises ImageError where the layers hold more than they may, or something in a place where nothing is ours."""
    entries = list(entries)
    total, limit = sum(entry.bytes for entry in entries), limits["added-bytes"]
    if total > limit:
        largest = max(entries, key=lambda entry: entry.bytes)
        found = f"{total:,} bytes, of {limit:,} at most; {largest.path} has {largest.bytes:,}"
        raise ImageError(f"the image adds too much to its base: {found}. Fix: that, or the limit in ci/shipping.toml")
    if strays := [entry for entry in entries if not _may_be(entry, limits)]:
        more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
        found = f"{strays[0].kind} {strays[0].path}{more}"
        fix = "what the Dockerfile leaves there, or the places in ci/shipping.toml"
        raise ImageError(f"the image changes its base where nothing is ours: {found}. Fix: {fix}")


def _may_be(entry: Entry, limits: dict[str, Any]) -> bool:
    places: list[str] = limits["places"]
    if entry.kind == "removed" or any(fnmatch.fnmatchcase(entry.path, place) for place in limits["never"]):
        return False
    if any(fnmatch.fnmatchcase(entry.path, place) for place in places):
        return True
    if entry.kind == "folder":
        parts = entry.path.split("/")
        on_the_way = ["/".join(place.split("/")[: len(parts)]) for place in places]
        if any(fnmatch.fnmatchcase(entry.path, folder) for folder in on_the_way):
            return True
    opened = any(fnmatch.fnmatchcase(entry.path, place) for place in limits["opened"])
    return opened and (entry.kind == "folder" or entry.bytes <= limits["opened-bytes"])


def report(image: str, tag: str, base: str, seconds: float) -> dict[str, object]:
    """What was built, for build/image.json. Raises ImageError on a wrong label, and on an addition that may not be."""
    (found,) = json.loads(output("docker", "image", "inspect", image))
    labels = found["Config"]["Labels"]
    check_labels(labels)
    added = [(layer, list(layer.entries())) for layer in save(image).added]
    check_added([entry for _, entries in added for entry in entries], policy())
    return {
        "tag": tag,
        "id": found["Id"],
        "base": base,
        "base_bytes": base_bytes(image),
        "added_bytes": sum(entry.bytes for _, entries in added for entry in entries),
        "added": [
            {
                "step": layer.step,
                "bytes": sum(entry.bytes for entry in entries),
                "stored_bytes": layer.stored_bytes,
                "files": [vars(entry) | {"mode": f"{entry.mode:04o}"} for entry in entries],
            }
            for layer, entries in added
            if entries
        ],
        "labels": labels,
        "seconds": round(seconds, 1),
    }
