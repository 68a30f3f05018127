"""What a call must give in float64, and what two kernels give that keep less: one with P in bf16, and stock's.

torch on many rows at once, on the call's device, so that long prefixes and many rows take no time; which slots and
drafts count, reference.py says. Draft keys and values must be finite (0 * NaN); reference.attention takes any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

import reference
from kdtree_verify.native.abi import V_DIM
from kdtree_verify.native.call import Call

DEVICE = torch.device("cuda", 0)
_SCORES_AT_ONCE = 2**26


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


def stock_tile(device: torch.device) -> int:
    """Keys that stock takes at once there: extend_attention.py's BLOCK_N for rows of 576."""
    return 64 if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 12 else 32


class _Rows(NamedTuple):
    """Query rows of one request and all that they may see; numbers in float64."""

    tokens: slice
    queries: torch.Tensor  # [T, heads, 576]
    stored: torch.Tensor  # [prefix, 576], pool rows before their scales
    keys: torch.Tensor  # [drafts, 576]
    values: torch.Tensor  # [drafts, 512]
    unseen: torch.Tensor  # [T, 1, drafts] bool
    blind: torch.Tensor  # [T, 1, 1] bool: sees no key at all

    def scores(self, sm_scale: float, k_scale: float) -> torch.Tensor:
        """[T, heads, prefix + drafts], -inf where a row does not see the key."""
        keys = torch.cat([self.stored * k_scale, self.keys])
        scores = self.queries @ keys.T * sm_scale
        scores[..., len(self.stored) :].masked_fill_(self.unseen, float("-inf"))
        return scores

    def all_values(self, v_scale: float) -> torch.Tensor:
        return torch.cat([self.stored[:, :V_DIM] * v_scale, self.values])


def _rows(call: Call) -> Iterator[_Rows]:
    device = call.q_extend.device
    for request in reference.requests(call):
        first, last = request.rows.start, request.rows.stop
        if first == last:
            continue
        stored = reference.stored(call, request)
        keys, values = call.k_extend[request.rows, 0].double(), call.v_extend[request.rows, 0].double()
        visible = request.visible.to(device)
        step = max(1, _SCORES_AT_ONCE // (call.q_extend.shape[1] * (len(stored) + len(keys))))
        for begin in range(first, last, step):
            tokens = slice(begin, min(begin + step, last))
            seen = visible[begin - first : tokens.stop - first, None]
            blind = ~seen.any(-1, keepdim=True) if len(stored) == 0 else torch.zeros_like(seen[..., :1])
            yield _Rows(tokens, call.q_extend[tokens].double(), stored, keys, values, ~seen, blind)


def _scales(call: Call) -> tuple[float, float, float]:
    """sm_scale, k_scale, v_scale as the ABI takes them: float32."""
    return tuple(torch.tensor([call.sm_scale, call.k_scale, call.v_scale]).double().tolist())


def _computed(call: Call, dtype: torch.dtype, compute: Callable[[_Rows], torch.Tensor]) -> torch.Tensor:
    shape = (*call.q_extend.shape[:2], V_DIM)
    out = torch.full(shape, float("nan"), dtype=dtype, device=call.q_extend.device)
    for rows in _rows(call):
        out[rows.tokens] = compute(rows).to(dtype)
    return out


def attention(call: Call) -> torch.Tensor:
    """float64 [tokens, heads, 512]; NaN in rows that no request names."""
    sm_scale, k_scale, v_scale = _scales(call)

    def compute(rows: _Rows) -> torch.Tensor:
        weights = torch.softmax(rows.scores(sm_scale, k_scale), -1).masked_fill_(rows.blind, 0.0)
        return weights @ rows.all_values(v_scale)

    return _computed(call, torch.float64, compute)


def bf16_flash(call: Call) -> torch.Tensor:
    """o_extend's dtype [tokens, heads, 512]: float32 scores and sums, P rounded to bfloat16 before it meets V; queries
    and pool rows as they are, whatever the pool's dtype."""
    sm_scale, k_scale, v_scale = _scales(call)

    def compute(rows: _Rows) -> torch.Tensor:
        scores = rows.scores(sm_scale, k_scale).float()
        weights = torch.exp(scores - scores.amax(-1, keepdim=True)).masked_fill_(rows.blind, 0.0)
        total = weights.sum(-1, keepdim=True).masked_fill_(rows.blind, 1.0)
        return (weights.bfloat16().double() @ rows.all_values(v_scale)).float() / total

    return _computed(call, call.o_extend.dtype, compute)


def stock_like(call: Call) -> torch.Tensor:
    """o_extend's dtype [tokens, heads, 512]: what stock SGLang's kernel gives.

    For the prefix, it casts queries and P to the pool's dtype (fp8: saturating), each tile's P against the row's
    maximum up to that tile; for the drafts P to their dtype. Sums are float32 in stock and wider here. Stock does not
    look at drafts behind a row's own block, whatever the mask says; here they count.
    """
    sm_scale, k_scale, v_scale = _scales(call)
    pool_dtype, draft_dtype = call.k_buffer.dtype, call.v_extend.dtype
    tile = stock_tile(call.q_extend.device)

    def compute(rows: _Rows) -> torch.Tensor:
        prefix = (_narrow(rows.queries, pool_dtype).double() @ rows.stored.T).float() * (sm_scale * k_scale)
        drafts = (rows.queries @ rows.keys.T).float() * sm_scale
        drafts.masked_fill_(rows.unseen, float("-inf"))
        tiles = torch.cat([_tiled(prefix, tile), _tiled(drafts, tile)], -2)
        highest = tiles.amax(-1).clamp(min=-1e20).cummax(-1).values
        weights = torch.exp(tiles - highest[..., None])
        carry = torch.exp(highest - highest[..., -1:])
        total = (weights.sum(-1) * carry).sum(-1, keepdim=True)
        split = -(-len(rows.stored) // tile)

        def add(part: slice, dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
            rounded = _narrow(weights[..., part, :], dtype).double() * carry[..., part, None]
            return rounded.flatten(-2)[..., : len(values)] @ values

        sums = add(slice(0, split), pool_dtype, rows.stored[:, :V_DIM]) * v_scale
        sums += add(slice(split, None), draft_dtype, rows.values)
        return sums.float() / total.masked_fill_(total == 0, 1.0)

    return _computed(call, call.o_extend.dtype, compute)


def _narrow(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded to nearest even, and saturated where torch would make NaN or Inf of what fp8 cannot hold."""
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        numbers = numbers.float().clamp(-limit, limit)
    return numbers.to(dtype)


def _tiled(scores: torch.Tensor, tile: int) -> torch.Tensor:
    """[..., keys] as [..., tiles, tile], the last one filled up with -inf."""
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % tile), value=float("-inf"))
    return padded.unflatten(-1, (-1, tile)) if padded.shape[-1] else padded.new_empty(*padded.shape[:-1], 0, tile)


class Errors:
    """Squared errors of ours, of the bf16 flash computation and of stock's, against float64, added up over calls."""

    def __init__(self) -> None:
        self.ours = self.flash = self.stock = self.want = 0.0

    def add(self, call: Call, got: torch.Tensor) -> None:
        """Adds the call's, and checks them: rows that the call names, and only those, are written."""
        named = reference.named_rows(call).to(got.device)
        assert (got[~named] == 12345.0).all(), "a row that no request names was written"
        got, want = got[named].double(), attention(call)[named]
        assert got.isfinite().all(), "NaN or Inf from finite inputs"
        others = bf16_flash(call)[named].double(), stock_like(call)[named].double()
        sums = [x.square().sum().item() for x in (got - want, *(other - want for other in others), want)]
        self.ours, self.flash, self.stock, self.want = (
            total + new for total, new in zip((self.ours, self.flash, self.stock, self.want), sums, strict=True)
        )
        # Few rows make a noisy ratio; all of a test's together are held to 1.1 by its end.
        limit = 1.1 if got.shape[0] * got.shape[1] >= 256 else 1.6
        ours, flash, stock, size = (total**0.5 for total in sums)
        assert ours <= limit * flash + 1e-6 * size, f"error {ours:.3e}, bf16 flash's {flash:.3e}"
        # Of a prefix of a few keys, which stock takes as a tile of its own, stock has the largest weight exactly.
        assert ours <= (limit + 0.1) * stock + 1e-6 * size, f"error {ours:.3e}, stock's {stock:.3e}"
        worst = (got - want).norm(dim=-1) - 0.02 * want.norm(dim=-1)
        assert (worst <= 1e-6).all(), "a row is more than 2% off"

    @property
    def ratio(self) -> float:
        """Ours over the bf16 flash computation's."""
        return (self.ours / self.flash) ** 0.5

    @property
    def stock_ratio(self) -> float:
        """Ours over stock's."""
        return (self.ours / self.stock) ** 0.5

    @property
    def relative(self) -> float:
        """Ours over the result."""
        return (self.ours / self.want) ** 0.5
