"""Where a capture was made."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ..native.library import Description
from ..versions import versions


@dataclass(frozen=True)
class Origin:
    """For the reader, and to know the same library again.

    Attributes:
        at: Unix time.
        mode: KDTREE_VERIFY.
        rank: The rank's name, e.g. dp0-pp0-tp0.
        model_path: --model-path, and how it is loaded (evidence.server.Server.model); None where SGLang has not said.
        device: The device's name, e.g. "NVIDIA RTX PRO 6000 Blackwell Workstation Edition".
        library: What library_facts says of it.
        versions: Of this package, sglang, torch, cuda; None where not installed.
    """

    at: float
    mode: str
    rank: str
    model_path: str | None
    device: str
    library: dict[str, str]
    versions: dict[str, str | None]


def now(mode: str, rank: str, model_path: str | None, device: torch.device, description: Description) -> Origin:
    """The origin of a capture that this process makes. Asks CUDA for the device's name: not for a reporter's thread."""
    library = library_facts(description)
    return Origin(time.time(), mode, rank, model_path, device_name(device), library, versions())


def library_facts(description: Description) -> dict[str, str]:
    """version, kind ("cuda" or "host"), archs ("sm_120a", "" for the host), compiler, sha256, source_hash."""
    return {
        "version": description.version,
        "kind": description.device_kind,
        "archs": ",".join(description.archs),
        "compiler": description.compiler,
        "sha256": description.sha256,
        "source_hash": description.source_hash,
    }


def device_name(device: torch.device) -> str:
    """The device, for people: "CPU", or its model and ordinal."""
    return "CPU" if device.type == "cpu" else f"{torch.cuda.get_device_name(device)} ({device})"
