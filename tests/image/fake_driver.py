"""NVIDIA's driver without a GPU: NVML (fakes/pynvml.py) and libcuda (fakes/cuda.c) that tell the same."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

FAKES = Path(__file__).parent / "fakes"

RTX = {"name": "NVIDIA RTX PRO 6000", "uuid": "GPU-aaaaaaaa-0000-0000-0000-000000000000", "cc": [12, 0], "mib": 97887}
H200 = {"name": "NVIDIA H200", "uuid": "GPU-bbbbbbbb-0000-0000-0000-000000000000", "cc": [9, 0], "mib": 143771}


def several(card: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Cards of one kind, each with a UUID of its own."""
    return [card | {"uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000"} for index in range(count)]


def build_libcuda(folder: Path) -> None:
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
    subprocess.run([*command, FAKES / "cuda.c", "-o", folder / "libcuda.so.1"], check=True)


@cache
def libcuda() -> Path:
    """The folder of the fake libcuda.so.1."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # for a container's user, too
    atexit.register(shutil.rmtree, folder)
    build_libcuda(folder)
    return folder


def device(gpu: dict[str, Any], free: int | None = None) -> str:
    """A GPU as fakes/cuda.c takes it; `free` in MiB."""
    digits = gpu["uuid"].partition("-")[2].replace("-", "")
    capability = ",".join(map(str, gpu["cc"]))
    return f"{digits},{capability},{gpu['mib']},{gpu['mib'] if free is None else free},{gpu['name']}"


def environment(nvml: dict[str, Any], **env: str) -> dict[str, str]:
    """Variables of a process whose driver tells `nvml`; CUDA has of it what CUDA_VISIBLE_DEVICES names by its UUID."""
    gpus = nvml.get("gpus", [])
    wanted = env.get("CUDA_VISIBLE_DEVICES", "GPU-").split(",")
    left = [gpu for gpu in gpus if any(entry and gpu["uuid"].startswith(entry) for entry in wanted)]
    left += [gpus[parent] for uuid, parent in nvml.get("mig", {}).items() if uuid in wanted]
    return {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(libcuda()),
        "FAKE_NVML": json.dumps(nvml),
        "FAKE_CUDA": ";".join(map(device, left)),
        **env,
    }


def is_alive(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
