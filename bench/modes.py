"""What a mode costs: a verify call as a rank answers it, by the patch's own code, without SGLang's forward_extend.

Beside the kernel alone that is what `on` counts, what sampling adds to calls that are not chosen, and what `validate`
computes twice and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kdtree_verify.config import Mode
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library
from kdtree_verify.rank.box import Box
from kdtree_verify.rank.kernel import Kernel
from kdtree_verify.rank.rank import Armed, Rank
from kdtree_verify.rank.records import Model, Records

from .cells import Cell
from .contenders import ERROR_BOUND, Prepared
from .timing import Launch

STOCK_BOUND = 1e-2
SAMPLE_EVERY = 1000
"""KDTREE_SAMPLE: so rarely that the median is of calls that are not chosen."""

_GIVEN = Call._fields.index("sm_scale") + 1
"""Arguments that a call is made with, by place; what follows them stays at its default."""


class ThroughRank:
    """A call in a mode, each of a cell's calls as a layer of its own.

    Args:
        name: Its key in the results.
        mode: VALIDATE or ON.
        library: The loaded library.
        stock: SGLang's extend_attention_fwd.
        device: Where the calls' tensors lie.
        sample_every: KDTREE_SAMPLE.
    """

    chain = False

    def __init__(
        self,
        name: str,
        mode: Mode,
        library: Library,
        stock: Callable[..., Any],
        device: torch.device,
        sample_every: int = 0,
    ) -> None:
        self.name, self.mode, self.library, self.stock, self.device = name, mode, library, stock, device
        self.sample_every = sample_every

    def bound(self, cell: Cell) -> float:
        """Validate answers as stock does."""
        return ERROR_BOUND if self.mode is Mode.ON else STOCK_BOUND

    def prepare(self, cell: Cell, calls: Sequence[Call]) -> Prepared:
        armed = Armed(cell.heads, cell.drafts, self.sample_every)
        rank = Rank(self.mode, Kernel(self.library, self.device), Records(self.device), armed, Box(self.device))
        outputs = [torch.empty_like(call.o_extend) for call in calls]
        return Prepared(
            [
                self._launch(rank, call._replace(o_extend=out), layer)
                for layer, (call, out) in enumerate(zip(calls, outputs, strict=True))
            ],
            outputs,
        )

    def _launch(self, rank: Rank, call: Call, layer: int) -> Launch:
        def launch() -> None:
            rank.attend(self.stock, tuple(call[:_GIVEN]), {}, Model.TARGET, layer)
            if rank.failure is not None:
                raise RuntimeError(rank.failure)

        return launch


def contenders(library: Library, stock: Callable[..., Any], device: torch.device) -> list[ThroughRank]:
    """`on`, `on` that samples, `validate`."""
    return [
        ThroughRank("on", Mode.ON, library, stock, device),
        ThroughRank("sampled", Mode.ON, library, stock, device, SAMPLE_EVERY),
        ThroughRank("validate", Mode.VALIDATE, library, stock, device),
    ]
