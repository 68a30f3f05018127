"""What this card reaches at best, measured in the run that is judged by it."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from kdtree_verify.errors import DeviceError

from .cells import Ceilings
from .timing import GpuTimer

SOURCE = Path(__file__).with_name("mma_peak.cu")
COPY_BYTES = 2 << 30
"""Far larger than any L2; less where the card's memory is small."""


@dataclass(frozen=True)
class Measured(Ceilings):
    """Ceilings, and the SM clock in MHz that mma.sync ran at."""

    mma_mhz: float


def measure(device: torch.device) -> Measured:
    """Raises DeviceError where mma.sync cannot be timed."""
    tflops, mhz = mma_peak(device)
    return Measured(copy=copy_rate(device), mma=tflops * 1e6, mma_mhz=mhz)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per microsecond by a large device-to-device copy; median of ten.

    By a kernel that reads and writes each element: a captured memcpy took 1.5 times as long on an H200.
    """
    free, _ = torch.cuda.mem_get_info(device)
    source = torch.empty(min(COPY_BYTES, free // 4) // 8, dtype=torch.int64, device=device).random_()
    target = torch.empty_like(source)
    timer = GpuTimer(replays=10, replay_us=1.0)
    return 2 * source.nbytes / timer.median([lambda: torch.bitwise_not(source, out=target)]).us


def mma_peak(device: torch.device) -> tuple[float, float]:
    """TFLOP/s of mma.sync on bf16, and the SM clock in MHz meanwhile; medians of mma_peak.cu's runs."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise DeviceError("mma.sync's ceiling cannot be measured", "no nvcc on PATH", "install CUDA 13.0, or set PATH")
    capability = "{}{}a".format(*torch.cuda.get_device_capability(device))
    with tempfile.TemporaryDirectory(prefix="kdtree-bench-") as folder:
        program = Path(folder) / "mma_peak"
        target = f"-gencode=arch=compute_{capability},code=sm_{capability}"
        _run(nvcc, "-std=c++17", "-O3", target, str(SOURCE), "-o", str(program))
        lines = [[float(word) for word in line.split()] for line in _run(str(program)).splitlines()]
    return statistics.median(tflops for tflops, _, _ in lines), statistics.median(mhz for _, mhz, _ in lines)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise DeviceError("mma.sync's ceiling cannot be measured", reason, f"see {Path(command[0]).name}'s words")
    return done.stdout
