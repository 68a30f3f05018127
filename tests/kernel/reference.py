"""What a tree-verify call must give: torch in float64, row by row, with no part of the kernel in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kdtree_verify.native.abi import V_DIM
from kdtree_verify.native.call import Call


@dataclass(frozen=True)
class Request:
    """One request of a call: its rows of the call's tensors, the slots of its prefix that lie in the pool, which
    draft key each row sees ([T, T] bool), and how many of its reads are refused."""

    rows: slice
    slots: torch.Tensor
    visible: torch.Tensor
    refused: int


def requests(call: Call) -> list[Request]:
    """The requests of a call by the rule of kernel/common/bounds.h."""
    qo, kv = call.qo_indptr.tolist(), call.kv_indptr.tolist()
    result = []
    for b in range(len(qo) - 1):
        first, last, refused = _window(qo[b], qo[b + 1], call.q_extend.shape[0])
        if last - first > call.max_len_extend:
            last, refused = first + call.max_len_extend, refused + 1
        rows = last - first
        if rows == 0:
            result.append(Request(slice(first, first), torch.empty(0).long(), torch.empty(0, 0).bool(), refused))
            continue
        first_entry, last_entry, changed = _window(kv[b], kv[b + 1], len(call.kv_indices))
        entries = call.kv_indices[first_entry:last_entry].long().cpu()
        in_pool = (entries >= 0) & (entries < call.k_buffer.shape[0])
        refused += changed + int((~in_pool).sum())

        prefix = last_entry - first_entry
        visible = torch.ones(rows, rows, dtype=torch.bool).tril()
        if call.custom_mask is not None:
            begin, size = int(call.mask_indptr[b]), rows * (prefix + rows)
            if begin >= 0 and begin + size <= len(call.custom_mask):
                block = call.custom_mask.view(torch.uint8)[begin : begin + size]
                visible = (block.view(rows, prefix + rows)[:, prefix:] != 0).cpu()
            else:
                visible, refused = torch.zeros_like(visible), refused + 1
        result.append(Request(slice(first, last), entries[in_pool], visible, refused))
    return result


def _window(begin: int, end: int, count: int) -> tuple[int, int, bool]:
    """The window clamped to [0, count], and whether that changed it."""
    first = min(max(begin, 0), count)
    last = min(max(end, first), count)
    return first, last, (first, last) != (begin, end)


def stored(call: Call, request: Request) -> torch.Tensor:
    """float64 [prefix, 576]: the request's pool rows, not yet scaled, where the pool is."""
    pool = call.k_buffer
    # Gathered as bytes and by way of float: torch has these for fp8 on every device.
    return pool.view(torch.uint8)[request.slots.to(pool.device), 0].view(pool.dtype).float().double()


def attention(call: Call) -> torch.Tensor:
    """float64 [tokens, heads, 512]; NaN in rows that no request names."""
    q, k, v = (tensor.cpu().double() for tensor in (call.q_extend, call.k_extend[:, 0], call.v_extend[:, 0]))
    out = torch.full((*q.shape[:2], V_DIM), float("nan"), dtype=torch.float64)
    # The ABI takes scales as float32.
    sm_scale, k_scale, v_scale = torch.tensor([call.sm_scale, call.k_scale, call.v_scale]).double()
    for request in requests(call):
        rows = stored(call, request).cpu()
        prefix_keys, prefix_values = rows * k_scale, rows[:, :V_DIM] * v_scale
        for t, seen in enumerate(request.visible):
            row = request.rows.start + t
            keys = torch.cat([prefix_keys, k[request.rows][seen]])
            values = torch.cat([prefix_values, v[request.rows][seen]])
            weights = torch.softmax(q[row] @ keys.T * sm_scale, -1)
            out[row] = weights @ values if len(keys) else 0.0
    return out


def named_rows(call: Call) -> torch.Tensor:
    """bool [tokens]: the rows that a request names."""
    named = torch.zeros(call.q_extend.shape[0], dtype=torch.bool)
    for request in requests(call):
        named[request.rows] = True
    return named


def assert_rounded(got: torch.Tensor, want: torch.Tensor) -> None:
    """`got` is `want` (float64) rounded once to got's dtype.

    The slack of 1e-11 of the largest value is for sums taken in another order; it is far below the half unit
    in the last place that a second rounding, or one float32 accumulation, would need.
    """
    if not len(want):
        return
    bits = {torch.bfloat16: 8, torch.float32: 24}[got.dtype]
    half_unit = torch.exp2(torch.frexp(want).exponent.double() - bits - 1)
    error = (got.cpu().double() - want).abs()
    slack = 1e-11 * want.abs().max()
    assert (error <= half_unit + slack).all(), f"largest error {(error / half_unit).max():.3g} half units"


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want||."""
    return ((got.cpu().double() - want).norm() / want.norm()).item()
