"""Where the first build takes place: which images it asks for, and what its steps have found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinning import lockfile
from pinning.shape import UNKNOWN
from pinning.uses import BUILT_ON

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Pinned:
    """An image as it is pinned."""

    key: str
    name: str
    tag: str
    digest: str
    manifest: str = UNKNOWN
    """The platform's own in an index; UNKNOWN until a registry has been asked."""

    @property
    def by_digest(self) -> str:
        return f"{self.name}@{self.digest}"

    @property
    def by_tag(self) -> str:
        return f"{self.name}:{self.tag}"


def pinned() -> tuple[Pinned, ...]:
    """Every image of ci/pins.toml."""
    images = lockfile.load()["images"]
    return tuple(
        Pinned(key, each["name"], each["tag"], each["digest"], each["manifest"]) for key, each in images.items()
    )


@dataclass
class Site:
    """What the steps work with.

    Attributes:
        images: To be asked for: ci/pins.toml's; in a stand-in run what the registry on loopback has in their place.
        out: The folder of the report and of what is made on the way.
        stand_in: Whether bases and registry are stand-ins, and the CPU serves.
        data: What each step found, by its name.
    """

    images: tuple[Pinned, ...]
    out: Path
    stand_in: bool = False
    data: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The name of the image that is built; the real one is compose.yaml's."""
        return "kdtree:stand-in" if self.stand_in else "kdtree:local"

    def bases(self) -> tuple[Pinned, ...]:
        return tuple(image for image in self.images if image.key in BUILT_ON)

    def others(self) -> tuple[Pinned, ...]:
        return tuple(image for image in self.images if image.key not in BUILT_ON)
