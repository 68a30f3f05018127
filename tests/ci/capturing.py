"""Finds without a GPU what a CUDA graph's capture forbids.

A capture records launches and runs none, so nothing may ask the GPU for a value or depend on one, and nothing may be
copied between it and the host. Tensors on torch's meta device, which have shapes and no values, stand for those on the
GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
GPU = "meta"

ASKS = frozenset(
    (
        *(aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.nonzero, aten.masked_select, aten.bincount),
        *(aten._unique2, aten.unique_dim, aten.unique_consecutive),
    )
)
"""Operators that wait for a value, or whose result's shape is one."""
INDEXED = frozenset((aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_))
MADE_BY_THE_HOST = frozenset((torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy))


class NotCapturableError(Exception):
    """What the code did that no capture allows."""


@contextmanager
def capturing() -> Iterator[None]:
    """Raises NotCapturableError where what runs inside could not be captured.

    torch's own meta kernels raise NotImplementedError for some of it; that is made the same error.
    """
    try:
        with _Functions(), _Operators():
            yield
    except NotImplementedError as error:
        raise NotCapturableError(str(error)) from error


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MADE_BY_THE_HOST and not isinstance(args[0], Tensor):
            raise NotCapturableError(f"{func.__name__}: a tensor made by the host")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet in ASKS or func is aten.repeat_interleave.Tensor:
            raise NotCapturableError(f"{func}: the host waits for a value")
        if packet in INDEXED and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise NotCapturableError(f"{func}: a mask is an index, and how many it names is not known")
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        to = torch.device(kwargs.get("device") or GPU).type
        # A scalar of the host travels with the launch that uses it.
        places = {tensor.device.type for tensor in inputs if tensor.dim() > 0 or packet is aten._to_copy}
        if inputs and len(places | {to}) > 1:
            raise NotCapturableError(f"{func}: from {', '.join(sorted(places)) or 'nowhere'} to {to}")
        return func(*args, **kwargs)
