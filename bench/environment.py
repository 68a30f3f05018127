"""Where a run took place: card, clocks, versions, commit."""

from __future__ import annotations

import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from kdtree_verify.native.library import Library

from . import peers

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")


def describe(library: Library, device: torch.device, commit: str | None) -> dict[str, Any]:
    """The facts that make a run's numbers comparable with another's."""
    card = torch.cuda.get_device_properties(device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
        "hardware": {
            "name": card.name,
            "compute_capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count,
            "memory_mib": card.total_memory >> 20,
            "l2_mib": card.L2_cache_size >> 20,
        },
        "versions": {
            "driver": _nvidia_smi("driver_version").get("driver_version", "unknown"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            **peers.versions(),
        },
        "library": {
            "source_hash": library.description.source_hash,
            "sha256": library.description.sha256,
            "compiler": library.description.compiler,
            "archs": list(library.description.archs),
        },
    }


def clocks() -> dict[str, str]:
    """Clocks, power and temperature at this moment; nothing where nvidia-smi does not tell."""
    return _nvidia_smi(*CLOCKS)


def slug(name: str) -> str:
    """A card's name as a file's: "NVIDIA H200" is h200."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")


def _commit() -> str:
    """The commit that is checked out, with a + where files differ from it."""
    try:
        found = subprocess.run(
            ["git", "-C", ROOT, "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _nvidia_smi(*fields: str) -> dict[str, str]:
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in told.stdout.strip().split(",")]
    return dict(zip(fields, values, strict=True)) if told.returncode == 0 and len(values) == len(fields) else {}
