"""Calls whose results show how every byte of an fp8 pool is read: as a value, and as a key.

Each comes with what it must give, float64 [tokens, heads, 512]. All numbers are exact but the weights of `keys_call`.
"""

from __future__ import annotations

import torch

from cases import Case, make_call
from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call

_REPEATS = 64  # of a request's one row, so that it is read at every place of a block of keys


def values_call(dtype: torch.dtype, v_scale: float) -> tuple[Call, torch.Tensor]:
    """A request a byte, whose rows see one pool row many times: its every value column is that byte, and every other
    column its neighbours in order. Scores are zero; of a byte that is NaN or Inf, NaN (0 times Inf is, too)."""
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    case = Case((_REPEATS,) * 256, (1,) * 256, 2, pool_dtype=dtype, mask="any", v_scale=v_scale, k_scale=0.5)
    call = make_call(case)
    call.custom_mask.zero_()
    call.q_extend.zero_()
    finite = torch.arange(256, dtype=torch.uint8)[numbers.isfinite()]
    slots = call.kv_indices[: 256 * _REPEATS : _REPEATS].clone()
    row = torch.empty(QK_DIM, dtype=torch.uint8)
    for byte, slot in enumerate(slots.tolist()):
        row.copy_(finite[(torch.arange(QK_DIM) + byte) % len(finite)])
        row[:V_DIM:2] = byte
        call.k_buffer.view(torch.uint8)[slot, 0] = row
    call.kv_indices[: 256 * _REPEATS] = slots.repeat_interleave(_REPEATS)
    want = call.k_buffer.view(torch.uint8)[slots, :, :V_DIM].view(dtype).double() * v_scale
    want[~numbers.isfinite()] = torch.nan
    return call, want.expand(-1, 2, -1)


_COLUMNS = (0, 1, 130, 255, 511, 512, 543, 575)  # one a head; latent and rope
_MARK = 300  # the value column that tells the two keys apart


def keys_call(dtype: torch.dtype, k_scale: float) -> tuple[Call, torch.Tensor]:
    """A request a finite byte, whose rows see two keys: zeros, and one with the byte in the column that the head's
    query looks at, large enough for a score of 0.5 to 1. Only the second has a value in column _MARK."""
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype)
    numbers = numbers[numbers.double().isfinite()]
    count = len(numbers)
    case = Case((2,) * count, (1,) * count, len(_COLUMNS), pool_dtype=dtype, mask="any", k_scale=k_scale)
    call = make_call(case)._replace(sm_scale=1.0)
    call.custom_mask.zero_()
    call.q_extend.zero_()
    slots = call.kv_indices[: 2 * count].view(count, 2)
    pool = call.k_buffer.view(torch.uint8)
    pool[slots.flatten()] = 0
    one = torch.ones(1).to(dtype).view(torch.uint8)
    pool[slots[:, 1], 0, _MARK] = one
    sizes = numbers.double().abs() * k_scale
    looks = torch.where(sizes > 0, torch.exp2(-torch.frexp(sizes).exponent.double()), 1.0)
    for head, column in enumerate(_COLUMNS):
        pool[slots[:, 1], 0, column] = numbers.view(torch.uint8)
        call.q_extend[:, head, column] = looks.bfloat16()
    want = torch.zeros(count, len(_COLUMNS), V_DIM, dtype=torch.float64)
    weights = torch.sigmoid(looks * numbers.double() * k_scale)[:, None]
    want[..., _MARK] = weights
    for column in (column for column in _COLUMNS if column < V_DIM):
        want[..., column] = weights * numbers.double()[:, None]
    return call, want
