"""Calls whose arrays end where memory does: who reads or writes past one ends the process."""

from __future__ import annotations

import ctypes
import mmap

import torch

from kdtree_verify.native.abi import V_DIM
from kdtree_verify.native.call import Call

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0


def guarded_bytes(count: int, alignment: int) -> torch.Tensor:
    """uint8 [count] of 0xFF, with a page on both sides that nobody may touch; between its end and that page is nothing,
    or what its alignment asks for."""
    taken = -(-count // alignment) * alignment
    pages = -(-taken // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, pages + 2 * mmap.PAGESIZE)
    first = torch.frombuffer(mapping, dtype=torch.uint8).data_ptr()
    for page in (first, first + mmap.PAGESIZE + pages):
        if _LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = mmap.PAGESIZE + pages - taken
    return torch.frombuffer(mapping, dtype=torch.uint8, offset=begin, count=count).fill_(0xFF)


def guarded(call: Call) -> Call:
    """The call with every array moved to guarded memory, in the same layout: strides, offsets, what lies between
    rows, and what shares memory."""
    moved: dict[int, torch.UntypedStorage] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return tensor
        if storage.data_ptr() not in moved:
            alignment = 16 if tensor.dim() == 3 else tensor.itemsize  # rows begin at 16 bytes
            memory = guarded_bytes(storage.nbytes(), alignment)
            memory.copy_(torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)))
            moved[storage.data_ptr()] = memory.untyped_storage()
        where = moved[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(*where)

    tensors = {name: move(value) for name, value in call._asdict().items() if isinstance(value, torch.Tensor)}
    result = call._replace(**tensors)
    return result._replace(v_buffer=result.k_buffer[..., :V_DIM])
