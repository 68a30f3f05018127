"""What cuda-python is for here: facts about a device, error names, and host memory mapped into the device.

Imported only where there is a GPU. Everything here runs while a backend is built, never while serving.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from cuda.bindings import runtime

from ..errors import DeviceError

_FIX = "check the driver and the GPU with nvidia-smi, then start again"


@dataclass(frozen=True)
class DeviceFacts:
    """One CUDA device. Memory in bytes; the newest CUDA that the driver runs, and the runtime's own version."""

    ordinal: int
    name: str
    uuid: str
    compute_capability: str
    memory: int
    cuda_driver: str
    cuda_runtime: str


def facts(ordinal: int) -> DeviceFacts:
    """Facts about CUDA device `ordinal` of this process.

    Raises:
        DeviceError: The runtime refuses to tell.
    """
    properties = _call(runtime.cudaGetDeviceProperties, ordinal)
    return DeviceFacts(
        ordinal=ordinal,
        name=properties.name.decode().rstrip("\0"),
        uuid=_uuid(bytes(properties.uuid.bytes)),
        compute_capability=f"{properties.major}.{properties.minor}",
        memory=int(properties.totalGlobalMem),
        cuda_driver=_version(_call(runtime.cudaDriverGetVersion)),
        cuda_runtime=_version(_call(runtime.cudaRuntimeGetVersion)),
    )


def mapped_host_memory(ordinal: int, size: int) -> tuple[int, int]:
    """`size` zeroed bytes of host memory that device `ordinal` can write, kept until the process ends.

    Returns:
        Its address for the host, and its address for the device.

    Raises:
        DeviceError: The runtime has none to give.
    """
    _call(runtime.cudaSetDevice, ordinal)
    host = int(_call(runtime.cudaHostAlloc, size, runtime.cudaHostAllocMapped | runtime.cudaHostAllocPortable))
    ctypes.memset(host, 0, size)
    return host, int(_call(runtime.cudaHostGetDevicePointer, host, 0))


def _call(function: Any, *arguments: Any) -> Any:
    status, *results = function(*arguments)
    if status != runtime.cudaError_t.cudaSuccess:
        _, name = runtime.cudaGetErrorName(status)
        _, text = runtime.cudaGetErrorString(status)
        raise DeviceError(f"{function.__name__} failed", f"{name.decode()}: {text.decode()}", _FIX)
    return results[0] if results else None


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _uuid(raw: bytes) -> str:
    digits = raw.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
