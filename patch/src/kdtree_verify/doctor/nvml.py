"""The GPUs that this container sees, by NVML.

NVML is the driver's management library: asking it starts no CUDA in this process and takes no memory on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError, DriverError

# The first driver branch that runs CUDA 13, which the image is built on (ci/pins.toml, cuda.minimum-driver).
DRIVER_FLOOR = 580
GIVE_GPUS = (
    "run with --gpus all (compose.yaml asks for all), on a host with NVIDIA's driver and container toolkit; "
    "without a container, load the driver (nvidia-smi must work here)"
)
_RESET = "look at the host's kernel log (dmesg | grep -i nvrm), reset the GPU or restart the host"


@dataclass(frozen=True)
class Mig:
    """A MIG device: its UUID, and those of the GPU, the GPU instance and the compute instance that it is."""

    uuid: str
    parent: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML describes it. `index` is NVML's, which is PCI order; memory in MiB."""

    index: int
    name: str
    uuid: str
    capability: str
    memory: int
    free: int
    mig: bool

    def __str__(self) -> str:
        mig = ", MIG on" if self.mig else ""
        return (
            f"GPU {self.index}: {self.name}, {self.uuid}, compute capability {self.capability}, {self.memory} MiB{mig}"
        )


@dataclass(frozen=True)
class Survey:
    """What NVML tells: the driver's version, every GPU, and every MIG device."""

    driver: str
    gpus: tuple[Gpu, ...]
    mig: tuple[Mig, ...]


def survey(hint: str = "") -> Survey:
    """Asks NVML.

    Args:
        hint: What else is known where the driver's library is not there at all.

    Raises:
        DeviceError: It cannot be asked, or a GPU does not answer.
    """
    with _nvml(hint) as pynvml:
        driver = _driver_version(_text(pynvml.nvmlSystemGetDriverVersion()))
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(pynvml, index, handle) for index, handle in enumerate(handles))
        mig = tuple(
            device for gpu, handle in zip(gpus, handles, strict=True) if gpu.mig for device in _mig(pynvml, handle, gpu)
        )
    return Survey(driver, gpus, mig)


def check_driver(version: str) -> None:
    """Raises DriverError for a driver that cannot run the image's CUDA, in whatever mode."""
    if int(version.split(".")[0]) < DRIVER_FLOOR:
        fix = f"install driver {DRIVER_FLOOR} or newer on the host"
        raise DriverError(f"the driver is too old for CUDA 13, which needs {DRIVER_FLOOR}", version, fix)


def _driver_version(told: str) -> str:
    """What NVML told, without a suffix: "580.65.06"."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", told)
    if found is None:
        fix = "run nvidia-smi on the host: reinstall the driver if it names no version there either"
        raise DriverError("the driver's version is unknown", f"'{told}'", fix)
    return found[0]


@contextmanager
def _nvml(hint: str) -> Iterator[Any]:
    """NVML, initialized; its errors in words that say what a person can do."""
    try:
        import pynvml
    except ImportError as error:
        fix = "rebuild the image, or install nvidia-ml-py"
        raise DeviceError("NVML's Python module is missing", str(error), fix) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        more = f"; {hint}" if hint and error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else ""
        raise DeviceError("no GPU can be seen", f"NVML: {error}{more}", _fix(error.value, pynvml)) from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise DeviceError("a GPU does not answer", f"NVML: {error}", _RESET) from None
    finally:
        with suppress(pynvml.NVMLError):  # what was asked is answered
            pynvml.nvmlShutdown()


def _fix(code: int, pynvml: Any) -> str:
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the driver was updated under way: restart the host, or reload its NVIDIA kernel modules"
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "load the NVIDIA driver on the host (nvidia-smi must work there), then start the container again"
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return "let this container's user open /dev/nvidia* (CDI: nvidia-ctk cdi generate)"
    if code in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
        return _RESET
    return GIVE_GPUS


def _gpu(pynvml: Any, index: int, handle: Any) -> Gpu:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError_NotSupported:
        mig = False
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = (_text(get(handle)) for get in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetUUID))
    return Gpu(index, name, uuid, f"{major}.{minor}", memory.total >> 20, memory.free >> 20, mig)


def _mig(pynvml: Any, handle: Any, gpu: Gpu) -> Iterator[Mig]:
    """The MIG devices of a GPU that this container sees."""
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue  # places are numbered, and may be empty
        instances = pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)
        yield Mig(_text(pynvml.nvmlDeviceGetUUID(device)), gpu.uuid, *instances)


def _text(value: str | bytes) -> str:
    # Older releases of the module return bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value
