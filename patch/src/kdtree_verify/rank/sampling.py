"""With `on`, stock computes one of so many calls as well, and the device compares: the answer is ours all the same.

A captured graph does the same work at every replay, so the work itself depends on the device: kdtree_gate hands stock
the call's indptrs, or zeros. To stock a call of zeros is one of empty requests, whose programs end at once, and to
kdtree_compare one with no rows, which counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..native.abi import Status
from ..native.call import Call
from .box import Box
from .kernel import Kernel
from .records import Model, Place, Records


class Sampler:
    """Samples every layer's calls, each layer at another of its calls.

    Args:
        kernel: On this rank's device.
        records: Where the device counts.
        box: Where it keeps a call that leaves its bound; None: nowhere.
        every: One of so many calls of a layer.
    """

    def __init__(self, kernel: Kernel, records: Records, box: Box | None, every: int):
        self._kernel, self._records, self._box, self._every = kernel, records, box, every

    def sample(
        self,
        stock: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        model: Model,
        layer: int,
        place: Place,
    ) -> str | None:
        """After ours has answered `call`, which is Call(*args, **kwargs); returns what went wrong, or None.

        May raise: torch and stock do.
        """
        requests = call.qo_indptr.shape[0]
        gated = call._replace(
            # Freed on return, as validate's.
            o_extend=torch.empty_like(call.o_extend, memory_format=torch.contiguous_format),
            qo_indptr=torch.empty_like(call.qo_indptr),
            kv_indptr=torch.empty_like(call.kv_indptr[:requests]),
        )
        counter = self._records.gate_counter(place)
        status = self._kernel.gate(call, gated, counter, every=self._every, phase=layer)
        if status != Status.OK:
            return f"kdtree_gate: {self._kernel.library.status_text(status)}"
        # What was given stays given by name or by place: which of stock's defaults are Call's is not ours to say.
        stock(*gated[: len(args)], **{name: getattr(gated, name) for name in kwargs})
        ours = call.o_extend
        box = None if self._box is None else self._box.args(gated, ours, model, layer)
        status = self._kernel.compare(gated, ours, place, self._records.shape_table, box=box)
        return None if status == Status.OK else f"kdtree_compare: {self._kernel.library.status_text(status)}"
