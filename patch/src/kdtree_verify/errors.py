"""The one way this package refuses: a line that says what is wrong, what was found and what to do.

Exit codes are the documented ones (README, "Exit codes"); docker/entrypoint.py ends with the same.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import NoReturn

from .terminal import printable


class ExitCode(IntEnum):
    """Process exit codes of the entrypoint, the launcher, the plugin and the `kdtree` command."""

    OK = 0
    UNHEALTHY = 1
    NOT_YET = 2
    """`kdtree report`: there is too little evidence for `on`."""
    NOT_JUSTIFIED = 3
    """`kdtree report`: the evidence speaks against `on`."""
    USAGE = 64
    """A bad argument or environment value."""
    DRIVER = 65
    """The NVIDIA driver is too old, or does not say which it is."""
    CAPABILITY = 66
    """A GPU that the kernel was not made or not built for."""
    WORKSPACE = 68
    """The GPU has no memory left for what the kernel needs."""
    DEVICE = 69
    """No GPU can be seen or used, or one does not answer."""
    LIBRARY = 70
    """The kernel library is missing or foreign."""
    CUDA = 71
    """The driver does not start CUDA."""
    SHARED_MEMORY = 72
    """/dev/shm is too small for the ranks."""
    GPU_MEMORY = 73
    """The model's weights do not fit the GPUs' free memory."""
    PEERS = 74
    """The GPUs do not exchange data rightly, or not in time."""
    LOCKED_MEMORY = 75
    """Too little memory may be locked."""
    SELFTEST = 76
    """The kernel computed a wrong result on this device, or did not get to its end."""
    ACCESS = 77
    """The user may not read the model, or not write what is compiled and downloaded."""
    CONTRACT = 78
    """SGLang is not what the patch was written for, the plugin cannot load, or the backend is not Triton."""


class KdtreeError(Exception):
    """A refusal with its exit code.

    Args:
        what: What is wrong, in a few words.
        found: What was found instead.
        fix: What the reader can do about it.
    """

    code = ExitCode.USAGE

    def __init__(self, what: str, found: str, fix: str):
        self.what, self.found, self.fix = what, found, fix
        super().__init__(printable(f"kdtree: {what}: {found}. Fix: {fix}"))


class UsageError(KdtreeError):
    code = ExitCode.USAGE


class DeviceError(KdtreeError):
    code = ExitCode.DEVICE


class DriverError(DeviceError):
    code = ExitCode.DRIVER


class CapabilityError(DeviceError):
    code = ExitCode.CAPABILITY


class WorkspaceError(DeviceError):
    code = ExitCode.WORKSPACE


class LibraryError(KdtreeError):
    code = ExitCode.LIBRARY


class SelftestFailed(LibraryError):
    """The library computed a wrong result on this device, or did not get to its end."""

    code = ExitCode.SELFTEST


class CudaError(KdtreeError):
    code = ExitCode.CUDA


class SharedMemoryError(KdtreeError):
    code = ExitCode.SHARED_MEMORY


class GpuMemoryError(KdtreeError):
    code = ExitCode.GPU_MEMORY


class PeersError(KdtreeError):
    code = ExitCode.PEERS


class LockedMemoryError(KdtreeError):
    code = ExitCode.LOCKED_MEMORY


class AccessError(KdtreeError):
    code = ExitCode.ACCESS


class ContractError(KdtreeError):
    code = ExitCode.CONTRACT


def end_process(error: KdtreeError) -> NoReturn:
    """Ends this process with the error's line on stderr and its exit code.

    SystemExit, because SGLang's plugin loader and scheduler log an Exception and serve on without us.
    """
    print(error, file=sys.stderr, flush=True)
    raise SystemExit(int(error.code))
