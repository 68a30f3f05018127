"""The box: host memory in which the device keeps one request of a call that left its bound.

Under graph replay a call's inputs are overwritten long before the host sees in a record that it was off, so the device
itself decides, copies and says when it is done (kdtree_box_header). Here is what the host does: it takes.
"""

from __future__ import annotations

import ctypes
import logging

import numpy as np
import torch

from ..native import abi
from ..native.call import DTYPES, Call, verify_args
from ..replay.capture import Capture
from .records import Model

logger = logging.getLogger(__name__)

BYTES = 64 << 20
"""A request of 64 draft tokens, 16 heads and a bf16 prefix of 50,000 takes as much."""

_MODELS = tuple(Model)
_TAG_BITS = 32
_BOX_SIZE = ctypes.sizeof(abi.BoxArgs)
_TORCH_DTYPES = {code: dtype for dtype, code in DTYPES.items() if dtype is not torch.bool}


class Box:
    """The box of one process. On a GPU it is pinned memory that the device writes to; nothing waits for the device.

    Args:
        device: Where the kernel runs.
        size: Bytes of host memory.

    Raises:
        DeviceError: There is no pinned memory to be had.
    """

    def __init__(self, device: torch.device, size: int = BYTES):
        self.size = size
        state = ctypes.sizeof(abi.BoxState)
        if device.type == "cuda":
            from ..native import gpu

            self._host, self._mapped = gpu.mapped_host_memory(device.index, size)
        else:
            # Pages that exist once they are touched: torch.zeros would touch them all.
            self._memory = np.zeros(size, dtype=np.uint8)
            self._host = self._mapped = self._memory.ctypes.data
        self._state = torch.zeros(state, dtype=torch.uint8, device=device)
        self._header = abi.BoxHeader.from_address(self._host)
        self._told = False

    @property
    def too_large(self) -> int:
        """Calls out of bound that have no request which is, and fits; while the box was empty."""
        return self._header.too_large

    @property
    def found_full(self) -> int:
        """Calls out of bound that found the box full."""
        return self._header.found_full

    def args(self, call: Call, ours: torch.Tensor, model: Model, layer: int) -> abi.BoxArgs:
        """For kdtree_compare of this call, with stock's output in its `o_extend`."""
        args = abi.BoxArgs(_BOX_SIZE)
        args.call = ctypes.pointer(verify_args(call, ours))
        args.state, args.memory, args.memory_bytes = self._state.data_ptr(), self._mapped, self.size
        args.tag = _MODELS.index(model) << _TAG_BITS | layer
        return args

    def take(self) -> Capture | None:
        """What the box holds, copied; it is empty after that. None where that is nothing, or cannot be repeated."""
        fill = self._header.sealed
        if fill == self._header.emptied:
            return None
        try:
            return self._capture()
        finally:
            self._header.emptied = fill

    def _capture(self) -> Capture | None:
        header = self._header
        if header.refused:
            self._tell(f"{header.refused} of its pool slots are outside the pool: it cannot be computed again")
            return None
        tokens, heads = header.draft_tokens, header.num_heads
        q, kv, pool, out = (
            _TORCH_DTYPES[code] for code in (header.q_dtype, header.kv_dtype, header.pool_dtype, header.out_dtype)
        )
        model, layer = divmod(header.tag, 1 << _TAG_BITS)
        return Capture(
            q=self._copy(header.q, q, tokens, heads, abi.QK_DIM),
            k=self._copy(header.k, kv, tokens, abi.QK_DIM),
            v=self._copy(header.v, kv, tokens, abi.V_DIM),
            visible=self._copy(header.visible, torch.uint8, tokens, tokens) if header.masked else None,
            prefix=self._copy(header.prefix, pool, header.prefix_len, abi.QK_DIM),
            stock=self._copy(header.stock, out, tokens, heads, abi.V_DIM),
            ours=self._copy(header.ours, out, tokens, heads, abi.V_DIM),
            model=_MODELS[model],
            layer=layer,
            sm_scale=header.sm_scale,
            k_scale=header.k_scale,
            v_scale=header.v_scale,
            rel_l2=header.rel_l2,
            bound=header.rel_l2_bound,
            request=header.request,
            batch=header.batch,
        )

    def _copy(self, offset: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        copy = torch.empty(shape, dtype=dtype)
        size = copy.numel() * copy.element_size()
        if offset + size > self.size:
            raise ValueError(f"the box holds {size} bytes at {offset}, of {self.size}")
        ctypes.memmove(copy.data_ptr(), self._host + offset, size)
        return copy

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            logger.warning("kdtree: a call out of bound is not kept: %s (said once)", text)
