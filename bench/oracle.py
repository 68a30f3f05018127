"""What a call must give, in float64, and how far an output is from it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from kdtree_verify.native.abi import V_DIM
from kdtree_verify.native.call import Call

from .inputs import UNWRITTEN

WHOLE_PREFIX = 64 << 10
"""Cells with longer prefixes are checked on some requests and heads."""
SAMPLED_REQUESTS = SAMPLED_HEADS = 2


@dataclass(frozen=True)
class Check:
    """An output against float64.

    Attributes:
        relative: ||output - float64|| / ||float64|| over what was checked.
        worst_row: The same of the worst token and head.
        flaw: Why the output is no result at all, None where it is one.
    """

    relative: float
    worst_row: float
    flaw: str | None

    def verdict(self, bound: float) -> str | None:
        """Why the output is wrong, None where it is within `bound` (rows: 5 times that)."""
        if self.flaw:
            return self.flaw
        if self.relative > bound or self.worst_row > 5 * bound:
            return f"relative error {self.relative:.2e}, worst row {self.worst_row:.2e}, bound {bound:.0e}"
        return None


def check(call: Call, lengths: tuple[int, ...], out: torch.Tensor, chain: bool = False) -> Check:
    """Compares `out` with the call computed in float64; `chain`: by the causal rule, not by the call's mask."""
    if not bool(out.isfinite().all()):
        return Check(float("nan"), float("nan"), "not finite everywhere")
    if bool((out == UNWRITTEN).all(-1).any()):
        return Check(float("nan"), float("nan"), "rows left unwritten")
    requests, heads = _sample(lengths, call.q_extend.shape[1])
    error = size = 0.0
    worst = 0.0
    for request in requests:
        rows = slice(request * call.max_len_extend, (request + 1) * call.max_len_extend)
        want = _attention(call, request, lengths, heads, chain)
        difference = out[rows][:, heads].double() - want
        error += float(difference.square().sum())
        size += float(want.square().sum())
        worst = max(worst, float((difference.norm(dim=-1) / want.norm(dim=-1)).max()))
    return Check((error / size) ** 0.5, worst, None)


def _sample(lengths: tuple[int, ...], heads: int) -> tuple[list[int], list[int]]:
    if max(lengths) <= WHOLE_PREFIX:
        return list(range(len(lengths))), list(range(heads))
    chosen = random.Random(heads)
    others = range(1, len(lengths))  # the first request is always there: in a mixed batch it is the long one
    requests = [0, *chosen.sample(others, min(SAMPLED_REQUESTS - 1, len(others)))]
    return requests, chosen.sample(range(heads), min(SAMPLED_HEADS, heads))


def _attention(call: Call, request: int, lengths: tuple[int, ...], heads: list[int], chain: bool) -> torch.Tensor:
    """float64 [T, len(heads), 512] of one request."""
    drafts, length = call.max_len_extend, lengths[request]
    first = sum(lengths[:request])
    slots = call.kv_indices[first : first + length]
    rows = slice(request * drafts, (request + 1) * drafts)
    stored = _gathered(call.k_buffer, slots).double()
    keys = torch.cat([stored * call.k_scale, call.k_extend[rows, 0].double()])
    values = torch.cat([stored[:, :V_DIM] * call.v_scale, call.v_extend[rows, 0].double()])
    del stored
    scores = call.q_extend[rows][:, heads].double().flatten(0, 1) @ keys.T
    assert call.sm_scale is not None
    scores = scores.mul_(call.sm_scale).view(drafts, len(heads), -1)
    scores[..., length:].masked_fill_(~_visible(call, request, lengths, chain)[:, None], float("-inf"))
    return (torch.softmax(scores, -1).flatten(0, 1) @ values).view(drafts, len(heads), V_DIM)


def _visible(call: Call, request: int, lengths: tuple[int, ...], chain: bool) -> torch.Tensor:
    """bool [T, T]: the draft tokens that each draft token sees."""
    drafts, length = call.max_len_extend, lengths[request]
    if chain:
        return torch.ones(drafts, drafts, dtype=torch.bool, device=call.q_extend.device).tril()
    assert call.custom_mask is not None
    first = sum(drafts * (other + drafts) for other in lengths[:request])
    block = call.custom_mask[first : first + drafts * (length + drafts)]
    return block.view(drafts, length + drafts)[:, length:]


def _gathered(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[len(slots), 576]: rows of the pool. Bytes are gathered as bytes, whether or not torch can index fp8."""
    if pool.element_size() > 1:
        return pool[slots, 0]
    return pool.view(torch.uint8)[slots, 0].view(pool.dtype)
