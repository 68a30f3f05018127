"""What several ranks on one host need of it: shared memory, and memory that may be locked."""

from __future__ import annotations

import glob
import os
import resource
from collections.abc import Mapping
from pathlib import Path

from ..errors import LockedMemoryError, SharedMemoryError
from .finding import Finding, ok, warning

SHM = Path("/dev/shm")
SEGMENT = 9_637_888
"""Bytes of one of NCCL's shared-memory connections: its buffers of the three protocols (4 MiB simple, 4800 KiB LL128,
512 KiB LL; NCCL's init.cc) and a page. NCCL's own message where they do not fit names this size."""

CHANNELS = 2
"""The fewest that NCCL uses between GPUs of one host without NVLink."""

COMMUNICATORS = 2
"""Of one tensor-parallel group in SGLang: torch's process group, and PyNccl's for CUDA graphs."""

QUEUE = 6 << 22
"""Bytes of the queue by which SGLang's first rank tells the others: 6 slots of 4 MiB (parallel_state.py)."""

ADVISED = 1 << 30
"""What NVIDIA advises for NCCL in Docker (NCCL User Guide, "Runtime and MPI issues": --shm-size=1g)."""

INFINIBAND = "/dev/infiniband/uverbs*"
_SHM_FIX = "give the container more: --shm-size=32g (compose.yaml: KDTREE_SHM_SIZE), or --ipc=host"
_MEMLOCK_FIX = "run with --ulimit memlock=-1 (compose.yaml does; systemd: LimitMEMLOCK=infinity)"


def needed(ranks: int, env: Mapping[str, str]) -> int:
    """Bytes of /dev/shm that `ranks` ranks of one host take at least, where GPUs cannot reach each other directly."""
    if ranks < 2:
        return 0
    connections = 0 if env.get("NCCL_SHM_DISABLE") == "1" else ranks * CHANNELS * COMMUNICATORS
    return QUEUE + connections * SEGMENT


def check_shm(ranks: int, env: Mapping[str, str], folder: Path = SHM) -> Finding:
    """/dev/shm against what NCCL and SGLang put there.

    Raises:
        SharedMemoryError: It is not there, or has not what `ranks` ranks need.
    """
    try:
        space = os.statvfs(folder)
    except OSError as error:
        if ranks < 2:
            return ok(f"{folder}: {error.strerror}; one rank needs none")
        raise SharedMemoryError(f"no {folder} for {ranks} ranks", str(error.strerror), _SHM_FIX) from None
    free, size, wanted = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize, needed(ranks, env)
    found = f"{_mib(free)} free of {_mib(size)}"
    if free < wanted:
        what = f"{folder} is too small for {ranks} ranks, whose NCCL needs {_mib(wanted)}"
        raise SharedMemoryError(what, found, _SHM_FIX)
    if ranks > 1 and free < ADVISED:
        return warning(f"{folder} is smaller than NVIDIA advises for NCCL ({_mib(ADVISED)}): {found}", _SHM_FIX)
    return ok(f"{folder}: {found}, {_mib(wanted)} needed by {ranks} rank{'s' if ranks > 1 else ''}")


def check_memlock(ranks: int, nodes: int, devices: str = INFINIBAND) -> Finding:
    """The limit of locked memory, which InfiniBand's buffers are.

    Raises:
        LockedMemoryError: Nodes speak by InfiniBand, and the limit is lower than unlimited.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return ok("memlock: unlimited")
    found = f"{limit >> 10} KiB"
    if nodes > 1 and glob.glob(devices):
        what = f"memlock is limited, and {nodes} nodes speak by InfiniBand, whose buffers are locked"
        raise LockedMemoryError(what, found, _MEMLOCK_FIX)
    if ranks > 1:
        return warning(f"memlock is limited, which NVIDIA advises against for NCCL: {found}", _MEMLOCK_FIX)
    return ok(f"memlock: {found}; one rank needs no more")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
