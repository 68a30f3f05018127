"""Whether the GPUs exchange data: opt-in, since it takes all of them, some seconds, and a torch in each rank.

Broken peer-to-peer transfers (IOMMU, ACS, a link that fails) hang NCCL or, worse, corrupt silently: so what arrives is
compared, and the time is limited.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ..errors import PeersError
from . import process
from .finding import Finding, ok

LIMIT = 120.0
"""Seconds for each of the two. They take a few; importing torch from a cold disk a minute."""

_CHILD = (sys.executable, "-m", "kdtree_verify.doctor.peers_child")
_FIX = (
    "compare with NCCL_P2P_DISABLE=1: if that mends it, switch the IOMMU and ACS off on the host or keep it set; "
    "NCCL_DEBUG=INFO says where it stops"
)


def check(count: int, backend: str = "nccl", limit: float = LIMIT) -> list[Finding]:
    """Copies between every two of `count` GPUs, then an all-reduce over all of them.

    Raises:
        PeersError: One does not end in time, fails, or does not bring what it should.
    """
    device = "cuda" if backend == "nccl" else "cpu"
    copies = process.run([*_CHILD, "copies", device, str(count)], limit)
    if copies.code != 0:
        raise PeersError("copies from GPU to GPU fail", copies.how(limit), _FIX)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        ranks = [[*_CHILD, "reduce", backend, str(rank), str(count), store] for rank in range(count)]
        ended = process.run_all(ranks, limit)
    # One rank's failure ends the others, which then only say that they were killed: the one that said more counts.
    for rank, each in sorted(enumerate(ended), key=lambda item: (item[1].code is None, item[0])):
        if each.code != 0:
            what = f"{backend} does not add up over {count} GPUs"
            raise PeersError(what, f"rank {rank}: {each.how(limit)}", _FIX)
    return [ok(copies.output.strip()), ok(ended[0].output.strip())]
