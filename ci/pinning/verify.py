"""Asks the registries for every pinned image: whether the digest is there, for which platform, of which commit."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import Any

from oci.errors import RegistryError

from . import lockfile, upstream
from .files import replace
from .lockfile import PINS_FILE
from .shape import UNKNOWN

REVISION = "org.opencontainers.image.revision"


def verify(pins: dict[str, Any], write: bool) -> int:
    """Prints what each registry has, a line an image; 0 only where all is as pinned.

    Args:
        write: Put the platform's manifests that pins.toml does not know yet in their places.
    """
    status, learned = 0, {}
    for key in pins["images"]:
        try:
            learned[key] = _verify_one(pins, key)
        except RegistryError as error:
            print(f"kdtree: [images.{key}] {error}", file=sys.stderr)
            status = max(status, error.code)
        else:
            print(f"{lockfile.get(pins, f'images.{key}')}: {pins['images'][key]['platform']} is {learned[key]}")
    if write:
        fill(learned)
    return status


def _verify_one(pins: dict[str, Any], key: str) -> str:
    """The digest of the platform's manifest. Raises RegistryError where it is not what is pinned."""
    image = pins["images"][key]
    found = upstream.find(upstream.client(image["name"]), image["digest"], image["platform"])
    if image["manifest"] not in (UNKNOWN, found.manifest.digest):
        raise RegistryError(f"manifest is {found.manifest.digest}, not {image['manifest']}. Fix: see who changed which")
    if key == "sglang":
        check_commit(found.labels, pins["sglang"]["commit"])
    return found.manifest.digest


def check_commit(labels: dict[str, str], commit: str) -> None:
    """Raises RegistryError where no label, or one of another commit, says what SGLang an image has."""
    assumed = tomllib.loads((lockfile.ROOT / "docker" / "base-assumptions.toml").read_text(encoding="utf-8"))
    needed = assumed["labels"]["commit"]
    said = {label: labels[label] for label in (*needed, REVISION) if label in labels}
    if not said.keys() >= set(needed) or not all(value.startswith(commit) for value in said.values()):
        found = ", ".join(f"{label}={value}" for label, value in said.items()) or "no label of a commit"
        raise RegistryError(
            f"the image is not of commit {commit}: {found}. Fix: trust neither before that is understood"
        )


def fill(learned: dict[str, str]) -> None:
    """Puts each image's manifest in the place of "unknown"."""
    text = PINS_FILE.read_text(encoding="utf-8")
    for key, manifest in learned.items():
        pattern = rf'(\[images\.{re.escape(key)}\]\n(?:(?!\[).*\n)*?manifest = ")unknown"'
        text = re.sub(pattern, rf'\g<1>{manifest}"', text)
    if text != PINS_FILE.read_text(encoding="utf-8"):
        replace(PINS_FILE, text)
