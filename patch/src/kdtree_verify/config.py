"""Every environment variable that the package reads, in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from .errors import UsageError


class Mode(StrEnum):
    OFF = "off"
    VALIDATE = "validate"
    ON = "on"


class Device(StrEnum):
    CUDA = "cuda"
    CPU = "cpu"


_Choice = TypeVar("_Choice", bound=StrEnum)

DEFAULT_LIBRARY_DIR = Path("/opt/kdtree/lib")
IMAGE_STATE_DIR = Path("/run/kdtree")
IMAGE_EVIDENCE_DIR = Path("/var/lib/kdtree")
PRODUCT_CAPABILITY = "12.0"


@dataclass(frozen=True)
class Config:
    """What the environment asks for.

    Attributes:
        mode: KDTREE_VERIFY, off where unset.
        device: KDTREE_DEVICE, cuda where unset.
        library_dir: KDTREE_LIBRARY_DIR, where the two libraries lie.
        state_dir: KDTREE_STATE_DIR, where launcher and ranks write their state files.
        log_interval: KDTREE_LOG_INTERVAL, seconds between a rank's report lines.
        evidence_dir: KDTREE_EVIDENCE_DIR, where what validate measured outlives the server.
        sample_every: KDTREE_SAMPLE, with `on` every so many verify calls of a layer run stock as well; 0: none.
        captures: KDTREE_CAPTURES, calls out of bound that each rank keeps, with their requests' KV cache; 0: none.
    """

    mode: Mode
    device: Device
    library_dir: Path
    state_dir: Path
    log_interval: float
    evidence_dir: Path
    sample_every: int
    captures: int


def from_environment(env: Mapping[str, str] | None = None) -> Config:
    """Reads the configuration.

    Raises:
        UsageError: A variable holds something else than what it may hold.
    """
    env = os.environ if env is None else env
    return Config(
        mode=_choice(env, "KDTREE_VERIFY", Mode, Mode.OFF),
        device=_choice(env, "KDTREE_DEVICE", Device, Device.CUDA),
        library_dir=Path(env.get("KDTREE_LIBRARY_DIR") or DEFAULT_LIBRARY_DIR),
        state_dir=_state_dir(env),
        log_interval=_seconds(env, "KDTREE_LOG_INTERVAL", 60.0),
        evidence_dir=_evidence_dir(env),
        sample_every=_count(env, "KDTREE_SAMPLE", 0),
        captures=_count(env, "KDTREE_CAPTURES", 4),
    )


def allowed_capabilities(env: Mapping[str, str]) -> tuple[str, ...]:
    """Compute capabilities that the kernel may meet: the product's, and those of KDTREE_ALLOW_CC, e.g. "9.0,10.0".

    Raises:
        UsageError: The variable holds something else.
    """
    more = tuple(part.strip() for part in env.get("KDTREE_ALLOW_CC", "").split(",") if part.strip())
    for value in more:
        if not re.fullmatch(r"[0-9]+\.[0-9]", value):
            fix = "set KDTREE_ALLOW_CC to a list such as 9.0,10.0, or unset it"
            raise UsageError("KDTREE_ALLOW_CC holds no compute capability", f"'{value}'", fix)
    return (PRODUCT_CAPABILITY, *more)


def _choice(env: Mapping[str, str], name: str, kind: type[_Choice], default: _Choice) -> _Choice:
    text = env.get(name, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        names = ", ".join(kind)
        raise UsageError(f"{name} is not one of {names}", f"'{text}'", f"set {name} to one of {names}") from None


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 86400.0:
        raise UsageError(f"{name} is not a number of seconds", f"'{text}'", f"set {name} to 0.1 .. 86400")
    return value


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > 1_000_000_000:
        raise UsageError(f"{name} is not a count", f"'{text:.40}'", f"set {name} to 0 (none) .. 1000000000")
    return int(text)


def _state_dir(env: Mapping[str, str]) -> Path:
    # The image makes IMAGE_STATE_DIR; elsewhere a per-user folder that needs no privilege.
    if env.get("KDTREE_STATE_DIR"):
        return Path(env["KDTREE_STATE_DIR"])
    if os.access(IMAGE_STATE_DIR, os.W_OK):
        return IMAGE_STATE_DIR
    return Path(env.get("XDG_RUNTIME_DIR") or "/tmp") / f"kdtree-{os.getuid()}"


def _evidence_dir(env: Mapping[str, str]) -> Path:
    if env.get("KDTREE_EVIDENCE_DIR"):
        return Path(env["KDTREE_EVIDENCE_DIR"])
    if os.access(IMAGE_EVIDENCE_DIR, os.W_OK):
        return IMAGE_EVIDENCE_DIR
    home = Path(env.get("XDG_STATE_HOME") or Path(env.get("HOME") or "/tmp") / ".local" / "state")
    return home / "kdtree"
