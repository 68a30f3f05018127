"""What is about to run: versions, the machine's driver and the image it comes from, in one line."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from ..config import Config, Mode
from ..errors import KdtreeError
from ..native import library
from ..versions import versions

IMAGE = Path("/opt/kdtree/image.json")
"""The image's build writes it: this project's revision, and SGLang's commit."""

_DRIVER = Path("/proc/driver/nvidia/version")
_UNKNOWN = "unknown"


def line(config: Config) -> str:
    """Names with their versions; what is not known is left out."""
    image = _image()
    found = dict(versions())
    if found["sglang"] and image.get("sglang_commit"):
        found["sglang"] += f" (commit {image['sglang_commit']})"
    parts = [f"{name} {version}" for name, version in found.items() if version]
    if driver := _driver():
        parts.append(f"driver {driver}")
    parts.append(_library(config))
    if image.get("revision"):
        parts.append(f"image revision {image['revision'][:12]}")
    return ", ".join(parts)


def _library(config: Config) -> str:
    if config.mode is Mode.OFF:
        return "no kernel library (off)"
    try:
        description = library.load(config.library_dir, config.device).description
    except KdtreeError as error:
        return f"{error.what}: {error.found}"
    return f"library {description.path.name} {description.sha256[:12]} (sources {description.source_hash[:12]})"


def _driver() -> str | None:
    """NVIDIA's kernel module, whose version is the driver's; nothing of CUDA is asked."""
    with suppress(OSError):
        found = re.search(r"Kernel Module[^\n]*?\s(\d+(?:\.\d+)+)", _DRIVER.read_text(encoding="utf-8"))
        return found[1] if found else None
    return None


def _image() -> dict[str, str]:
    with suppress(OSError, ValueError):
        document = json.loads(IMAGE.read_text(encoding="utf-8"))
        return {name: str(value) for name, value in document.items() if value and value != _UNKNOWN}
    return {}
