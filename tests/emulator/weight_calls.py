"""Calls whose weights reach the ends of what P's numbers hold. With another kSlack or kBelow than operands.cuh's, one
of them comes out wrong."""

from __future__ import annotations

import math

import torch

from cases import POOLS, Case, make_call
from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call

_KEYS = 64  # two steps
_LATE = 40  # a key of the second one


def _call(pool: str, values: torch.Tensor, scores: dict[int, tuple[float, float]]) -> Call:
    """One request whose rows see no draft token and _KEYS keys of these values [_KEYS, 512]. A key scores, in base 2,
    the sum of its two `scores`, each a number that the pool holds; 0 where it has none."""
    call = make_call(Case((_KEYS,), (4,), 8, pool_dtype=POOLS[pool]))._replace(sm_scale=math.log(2))
    call.custom_mask.zero_()
    call.q_extend.zero_()
    call.q_extend[..., QK_DIM - 2 :] = 1
    rows = torch.zeros(_KEYS, QK_DIM)
    rows[:, :V_DIM] = values
    for key, score in scores.items():
        rows[key, QK_DIM - 2 :] = torch.tensor(score)
    slots = call.kv_indices[:_KEYS]
    call.k_buffer.view(torch.uint8)[slots, 0] = rows.to(call.k_buffer.dtype).view(torch.uint8)
    return call


def weight_calls() -> dict[str, Call]:
    """By what they need."""
    random = torch.Generator().manual_seed(3)
    beside_one_of_zeros = torch.full((_KEYS, V_DIM), 256.0)
    beside_one_of_zeros[0] = 0
    return {
        "weights of bf16 far below 2^9": _call("bf16", torch.full((_KEYS, V_DIM), 3e36), {_LATE: (9, 0)}),
        "weights of float16 below 2^16": _call("e5m2", torch.randn(_KEYS, V_DIM, generator=random), {_LATE: (8, 1)}),
        # Only the small weights' keys have values.
        "all bits of weights of 2^-21 of the greatest": _call(
            "e4m3", beside_one_of_zeros, dict.fromkeys(range(1, _KEYS), (-20, -0.375))
        ),
    }
