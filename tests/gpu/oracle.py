"""Calls on a GPU, what they must give in float64, and what a kernel of stock's kind gives.

Both are torch on the whole of a request at once, so that long prefixes and many rows take no time; which slots and
drafts count, tests/kernel/reference.py says. Draft values must be finite (0 * NaN); reference.attention takes any.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import reference
from kdtree_verify.abi import V_DIM
from kdtree_verify.call import Call

DEVICE = torch.device("cuda", 0)


def on_gpu(call: Call) -> Call:
    """The call with every tensor on the GPU, in the same layout: strides, offsets and what lies between rows."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        memory = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).to(DEVICE)
        moved = torch.empty(0, dtype=tensor.dtype, device=DEVICE)
        return moved.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())

    moved = call._replace(
        **{name: move(value) for name, value in call._asdict().items() if isinstance(value, torch.Tensor)}
    )
    return moved._replace(v_buffer=moved.k_buffer[..., :V_DIM])


def attention(call: Call) -> torch.Tensor:
    """float64 [tokens, heads, 512]; NaN in rows that no request names."""
    out = torch.full((*call.q_extend.shape[:2], V_DIM), float("nan"), dtype=torch.float64, device=DEVICE)
    for rows, scores, values in _scored(call):
        weights = torch.softmax(scores, -1).nan_to_num_(0.0)  # a row that sees nothing: 0 / 0
        out[rows] = weights @ values
    return out


def bf16_flash(call: Call) -> torch.Tensor:
    """bfloat16 [tokens, heads, 512]: float32 scores and sums, P rounded to bfloat16 before it meets V."""
    out = torch.full((*call.q_extend.shape[:2], V_DIM), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    for rows, scores, values in _scored(call):
        scores = scores.float()
        weights = torch.exp(scores - scores.amax(-1, keepdim=True)).nan_to_num_(0.0)
        total = weights.sum(-1, keepdim=True)
        sums = (weights.bfloat16().double() @ values).float()
        out[rows] = torch.where(total > 0, sums / total, 0.0).bfloat16()
    return out


def _scored(call: Call) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Rows, scaled scores [T, H, keys] (-inf: not seen) and values [keys, 512] of each request, in float64."""
    sm_scale, k_scale, v_scale = torch.tensor([call.sm_scale, call.k_scale, call.v_scale]).double().tolist()
    for request in reference.requests(call):
        if request.rows.start == request.rows.stop:
            continue
        stored = call.k_buffer[request.slots.to(DEVICE), 0].double()
        keys = torch.cat([stored * k_scale, call.k_extend[request.rows, 0].double()])
        values = torch.cat([stored[:, :V_DIM] * v_scale, call.v_extend[request.rows, 0].double()])
        scores = call.q_extend[request.rows].double() @ keys.T * sm_scale
        scores[..., len(request.slots) :].masked_fill_(~request.visible.to(DEVICE)[:, None], float("-inf"))
        yield request.rows, scores, values


class Errors:
    """Squared errors of ours and of the bf16 flash computation against float64, added up over calls."""

    def __init__(self) -> None:
        self.ours = self.flash = self.want = 0.0

    def add(self, call: Call, got: torch.Tensor) -> None:
        """Adds the call's, and checks them: rows that the call names, and only those, are written."""
        named = reference.named_rows(call)
        assert (got[~named] == 12345.0).all(), "a row that no request names was written"
        got, want = got[named].double(), attention(call)[named]
        assert got.isfinite().all()
        flash = bf16_flash(call)[named].double()
        ours, theirs, size = ((x.square().sum().item()) for x in (got - want, flash - want, want))
        self.ours, self.flash, self.want = self.ours + ours, self.flash + theirs, self.want + size
        # Few rows make a noisy ratio; all of a test's together are held to 1.1 by its end.
        limit = 1.1 if got.shape[0] * got.shape[1] >= 256 else 1.6
        assert ours**0.5 <= limit * theirs**0.5 + 1e-6 * size**0.5, f"{(ours / theirs) ** 0.5:.3f} times bf16 flash"
        worst = (got - want).norm(dim=-1) - 0.02 * want.norm(dim=-1)
        assert (worst <= 1e-6).all(), "a row is more than 2% off"

    @property
    def ratio(self) -> float:
        return (self.ours / self.flash) ** 0.5

    @property
    def relative(self) -> float:
        return (self.ours / self.want) ** 0.5
