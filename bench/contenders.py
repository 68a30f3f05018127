"""Who is timed. A contender makes launches out of calls; every launch writes its call's result into its own tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kdtree_verify.native.call import DTYPES, Call, verify_args
from kdtree_verify.native.library import Library

from .cells import Cell
from .inputs import DTYPES as POOL_DTYPES
from .timing import Launch

ERROR_BOUND = 5e-3
"""Relative error against float64 above which an output is wrong: twice what bf16 leaves, whatever the pool."""


@dataclass(frozen=True)
class Prepared:
    """Launches, warm or not, and where each one's result goes: [tokens, heads, 512]."""

    launches: list[Launch]
    outputs: list[torch.Tensor]


class Contender(Protocol):
    """One kernel, or one way of calling it.

    Attributes:
        name: Its key in the results.
        chain: It takes no tree mask: each draft token sees all before it.
    """

    name: str
    chain: bool

    def bound(self, cell: Cell) -> float:
        """The relative error above which its output is wrong."""

    def prepare(self, cell: Cell, calls: Sequence[Call]) -> Prepared:
        """Whatever need not be done again for each call. Raises RuntimeError where it cannot take the cell."""


class Kdtree:
    """The library's kdtree_verify, both kernels that it launches.

    Args:
        library: The loaded library.
        device: Where the calls' tensors lie.
    """

    name, chain = "kdtree", False

    def __init__(self, library: Library, device: torch.device) -> None:
        self.library = library
        self.ordinal = -1 if device.type == "cpu" else (device.index or 0)
        size = library.largest_workspace_size(self.ordinal)
        self.workspace = torch.empty(size, dtype=torch.uint8, device=device)

    def takes(self, pool: str) -> bool:
        """Whether the library has code for pools of this element."""
        return DTYPES[POOL_DTYPES[pool]] in self.library.description.pool_dtypes

    def bound(self, cell: Cell) -> float:
        return ERROR_BOUND

    def prepare(self, cell: Cell, calls: Sequence[Call]) -> Prepared:
        return Prepared([self._launch(call) for call in calls], [call.o_extend for call in calls])

    def _launch(self, call: Call) -> Launch:
        args = verify_args(call, call.o_extend)
        args.device = self.ordinal
        args.workspace, args.workspace_bytes = self.workspace.data_ptr(), self.workspace.numel()

        def launch() -> None:
            # A capture runs on a stream of its own.
            args.stream = None if self.ordinal < 0 else torch.cuda.current_stream(self.ordinal).cuda_stream
            self.library.check(self.library.verify(args), "kdtree_verify")

        return launch
