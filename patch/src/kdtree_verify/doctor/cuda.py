"""Whether the driver really starts CUDA: tried in a child process with a time limit, never in this one.

What it lists is CUDA's own order, with CUDA_VISIBLE_DEVICES and MIG already applied.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CudaError
from . import process
from .nvml import GIVE_GPUS, Survey

LIMIT = 60.0
"""Seconds. A context takes well under one; without persistence mode the driver loads each card first, some seconds."""

CUDA_FLOOR = 13000
"""What cuDriverGetVersion must tell at least: CUDA 13.0."""

_COMMAND = (sys.executable, "-IS", str(Path(__file__).with_name("cuda_child.py")))
_HOST = "look at the host's kernel log (dmesg | grep -i nvrm)"
_FIXES = {
    -1: GIVE_GPUS,
    2: "end what uses the GPU's memory (nvidia-smi on the host)",
    3: f"{_HOST}, and restart the host's NVIDIA services",
    46: "end what uses the GPU, or leave exclusive mode: nvidia-smi -c 0",
    100: "unset CUDA_VISIBLE_DEVICES or correct it; with MIG, hand a MIG device over",
    304: "load nvidia-uvm on the host (nvidia-modprobe -u -c 0), and hand over /dev/nvidia-uvm",
    802: "start NVIDIA's fabric manager on the host, or wait until it has finished",
    803: "restart the host after the driver's update; mask a compat folder of libcuda in the container",
    804: "unset LD_LIBRARY_PATH of a compat folder: these cards take only the driver's own libcuda",
    999: "load nvidia-uvm on the host (nvidia-modprobe -u -c 0), and hand over /dev/nvidia-uvm",
}
"""By CUresult (cuda.h)."""


@dataclass(frozen=True)
class Device:
    """A device as CUDA lists it; `uuid` as NVML writes it. Memory in bytes, free beside a context of its own."""

    ordinal: int
    name: str
    uuid: str
    capability: str
    free: int
    total: int

    def __str__(self) -> str:
        return f"cuda:{self.ordinal} is {self.name}, {self.uuid}, compute capability {self.capability}"


def start(survey: Survey, limit: float = LIMIT) -> tuple[Device, ...]:
    """Starts CUDA on every device that it lists.

    Raises:
        CudaError: It does not start, not in time, or a device does not keep what is written.
    """
    ended = process.run([*_COMMAND, str(os.getpid())], limit)
    said = [json.loads(line) for line in ended.output.splitlines() if line.endswith("}")]
    error = next((line for line in said if "error" in line), None)
    if error is not None:
        found = f"{error['call']}: {error['name']}" + (f" ({error['error']})" if error["error"] > 0 else "")
        raise CudaError("CUDA does not start", found, _FIXES.get(error["error"], f"{_HOST}, then restart the host"))
    if ended.code != 0:
        reached = next((line["step"] for line in reversed(said) if "step" in line), "its first step")
        fix = f"{_HOST}, reset the GPU or restart the host"
        raise CudaError("CUDA does not start", f"{ended.how(limit)}, at: {reached}", fix)
    (told,) = (line for line in said if "count" in line)
    if told["driver"] < CUDA_FLOOR:
        found = f"libcuda runs CUDA {told['driver'] // 1000}.{told['driver'] % 1000 // 10}"
        raise CudaError("the driver's libcuda is too old for CUDA 13", found, "let the toolkit mount the host's own")
    return tuple(_device(line, survey) for line in said if "ordinal" in line)


def _device(line: dict[str, Any], survey: Survey) -> Device:
    digits = line["uuid"]
    bare = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    prefix = "MIG" if f"MIG-{bare}" in {device.uuid for device in survey.mig} else "GPU"
    device = Device(line["ordinal"], line["name"], f"{prefix}-{bare}", line["capability"], line["free"], line["total"])
    if not line["intact"]:
        fix = "test the card's memory (nvidia-smi -q -d ECC,ROW_REMAPPER), replace the card"
        raise CudaError("a GPU does not keep what is written to it", str(device), fix)
    return device
