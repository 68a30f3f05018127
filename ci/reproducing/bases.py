"""What the two builds stand on: the pinned images where their registry answers, else stand-ins of this machine."""

from __future__ import annotations

import shutil
import subprocess
from enum import Enum
from pathlib import Path

from imaging import recipe
from imaging.build import buildx
from imaging.errors import ImageError
from pinning import lockfile
from pinning.uses import BUILT_ON

ASKING_SECONDS = 30


class Bases(Enum):
    """Which bases; the value is what they are called."""

    REAL = "the pinned images"
    STAND_IN = "stand-ins"


ROOM = {Bases.REAL: 150, Bases.STAND_IN: 12}
"""GB of disk for the bases, unpacked, two archives and what is compiled. For the pinned images it is an estimate."""


def at_hand() -> Bases:
    """The pinned images where all of them can be pulled from here."""
    pins, elsewhere = lockfile.load(), recipe.mirror_contexts()
    try:
        for key in BUILT_ON:
            image = lockfile.get(pins, f"images.{key}")
            command = [*buildx(), "imagetools", "inspect", elsewhere.get(image, image).removeprefix("docker-image://")]
            subprocess.run(command, capture_output=True, check=True, timeout=ASKING_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return Bases.STAND_IN
    return Bases.REAL


def need_room(bases: Bases, folder: Path) -> None:
    """Raises ImageError where the disk is too small."""
    free = shutil.disk_usage(folder).free // 10**9
    if free < ROOM[bases]:
        found = f"{ROOM[bases]} GB needed for two builds on {bases.value}, {free} GB free"
        raise ImageError(f"too little room on the disk of {folder}: {found}. Fix: free some, or another disk")


def contexts(bases: Bases) -> dict[str, str]:
    """What takes the bases' place. Stand-ins are built once, for what is reproduced is what is added to a base."""
    return recipe.stand_in_contexts() if bases is Bases.STAND_IN else recipe.mirror_contexts()


def options(bases: Bases) -> tuple[str, ...]:
    """For buildx: the private engine's containers reach no network but by way of the machine's own."""
    return ("--network=host",) if bases is Bases.REAL else ()
