"""What a captured call must give, in float64, and how far a kernel may be from it by its arithmetic alone.

Nothing of either kernel is in it: plain products and a softmax over all keys at once, a few heads at a time. It
computes what kernel/include/kdtree_verify.h says of kdtree_verify_args, with scales as the kernels get them (float32).

A kernel rounds what it multiplies: the softmax's weights before they meet the values, and, SGLang's with an fp8 pool,
the query as well. The same attention with these roundings, and no other error, shows what they cost on this very call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..native.abi import V_DIM
from .capture import Capture

_SCORES_AT_ONCE = 1 << 22  # 32 MiB of float64, held a few times over
_ALLOWED = 2.0  # times what the roundings cost: they fall otherwise where sums run in another order
_FLOOR = 2.0**-8  # the output's own rounding to bf16, twice


@dataclass(frozen=True)
class Reference:
    """The float64 result and its yardsticks.

    Attributes:
        exact: [T, H, 512] float64.
        stock_rounding: Relative L2 of the roundings that SGLang's kernel makes, on this call.
        ours_rounding: Likewise of this package's.
    """

    exact: torch.Tensor
    stock_rounding: float
    ours_rounding: float

    @property
    def stock_limit(self) -> float:
        """The relative L2 up to which SGLang's arithmetic explains a difference from `exact`."""
        return _FLOOR + _ALLOWED * self.stock_rounding

    @property
    def ours_limit(self) -> float:
        """Likewise for this package's kernels."""
        return _FLOOR + _ALLOWED * self.ours_rounding


def compute(capture: Capture) -> Reference:
    """Takes (L + T) * 17 KB of memory and a little more, whatever H is; seconds to a minute on a CPU."""
    out = torch.empty(capture.draft_tokens, capture.heads, V_DIM, dtype=torch.float64)
    squares = torch.zeros(3, dtype=torch.float64)  # of exact, of stock's deviation, of ours
    for heads, exact, stock, ours in _chunks(capture):
        out[:, heads] = exact
        squares += torch.stack([each.square().sum() for each in (exact, stock - exact, ours - exact)])
    norm, stock_error, ours_error = squares.sqrt().tolist()
    if norm == 0:
        return Reference(out, 0.0, 0.0)
    return Reference(out, stock_error / norm, ours_error / norm)


def _chunks(capture: Capture) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Some heads, and their result: exact, with stock's roundings, with ours; [T, heads of the chunk, 512] each."""
    sm_scale, k_scale, v_scale = torch.tensor([capture.sm_scale, capture.k_scale, capture.v_scale]).double()
    length, tokens = capture.prefix_length, capture.draft_tokens
    rows = capture.prefix.float().double()
    keys = torch.cat([rows * k_scale, capture.k.double()])
    values = torch.cat([rows[:, :V_DIM] * v_scale, capture.v.double()])
    del rows
    hidden = ~_seen(capture)
    step = max(1, _SCORES_AT_ONCE // (tokens * (length + tokens)))
    for first in range(0, capture.heads, step):
        heads = slice(first, min(first + step, capture.heads))
        query = capture.q[:, heads].double()
        scores = query @ keys.T * sm_scale
        scores.masked_fill_(hidden[:, None], float("-inf"))
        weights, total = _weights(scores)
        exact = weights @ values / total
        ours = _round(weights, torch.bfloat16) @ values / total
        if capture.prefix.element_size() == 1:
            scores[..., :length] = _round(query, capture.prefix.dtype) @ keys[:length].T * sm_scale
            weights, total = _weights(scores)
            weights[..., :length] = _round(weights[..., :length], capture.prefix.dtype)
            weights[..., length:] = _round(weights[..., length:], torch.bfloat16)
            yield heads, exact, weights @ values / total, ours
        else:
            yield heads, exact, ours, ours  # the same roundings: of the weights to bf16


def _seen(capture: Capture) -> torch.Tensor:
    """bool [T, L + T]: every row sees the whole prefix, and of the draft tokens what the mask says."""
    drafts = (
        torch.ones(capture.draft_tokens, capture.draft_tokens).tril() if capture.visible is None else capture.visible
    )
    return torch.cat([torch.ones(capture.draft_tokens, capture.prefix_length, dtype=torch.bool), drafts != 0], dim=1)


def _weights(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax's weights before they are divided by their sum, and the sum; weights of 0 where nothing is seen."""
    highest = scores.amax(-1, keepdim=True)
    weights = (scores - highest.nan_to_num(neginf=0.0)).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights, total.masked_fill(total == 0, 1.0)


def _round(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As a GPU rounds: to nearest even, and to the largest number where there is none as large."""
    largest = torch.finfo(dtype).max
    return values.float().clamp(-largest, largest).to(dtype).float().double()
