"""Proves a kernel library on a device, in under 2 s: every shape, every variant, eager and in a graph.

Needs no model and no SGLang. `golden` holds the inputs and the recorded float64 results, `shapes` lays them
out as SGLang would, `runner` launches and measures on the device, `counters` proves the record and
kdtree_compare, `report` is what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import SelftestFailed, UsageError
from ..native.abi import MAX_DRAFT_TOKENS, MAX_HEADS
from ..native.library import Library
from .report import FIX, CaseResult, SelftestReport
from .runner import Runner

__all__ = ["CaseResult", "SelftestReport", "run"]


def run(library: Library, device: torch.device, num_heads: int, max_draft_tokens: int) -> SelftestReport:
    """Runs every case; `raise_if_failed` of what it returns turns a wrong result into SelftestFailed.

    Device memory: about 65 KB for each head and draft token and the workspace, given back at the end.

    Args:
        library: The library for this kind of device.
        device: cuda:N, or cpu for the host library, which runs eager only.
        num_heads: Query heads of this rank, 1..128.
        max_draft_tokens: T, 1..256.

    Raises:
        UsageError: A number is outside its limits.
        LibraryError: The library has no code for this device, or refuses these limits.
        SelftestFailed: The run broke off: a fault, an illegal call under capture, no memory. After a fault
            the process cannot use the device any more.
    """
    _check_limit("heads", num_heads, MAX_HEADS)
    _check_limit("draft tokens", max_draft_tokens, MAX_DRAFT_TOKENS)
    try:
        with _alone(device):
            return Runner(library, device, num_heads, max_draft_tokens).run()
    except RuntimeError as error:  # what torch raises for the device's errors
        first_line = str(error).strip().partition("\n")[0]
        raise SelftestFailed(f"the self-test broke off on {device}", first_line, FIX) from error


@contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    """Makes `device` current, and leaves memory and threads as they were."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
            torch.cuda.empty_cache()
        return
    # Small tensors: on a busy machine torch's threads wait for each other for seconds.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_limit(name: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise UsageError(f"the number of {name} is outside the limits", str(value), f"give 1 to {limit}")
