"""Where validate's bounds for fp8 pools come from: stock's arithmetic in torch, at any length of prefix.

Stock casts q to the pool's dtype for the scores of the prefix, and P for their product with the values, tile by tile
of a running maximum; the draft tokens stay in bf16.
"""

from __future__ import annotations

import pytest
import torch

from kdtree_verify.rank.kernel import REL_L2_BOUND_FP8_POOL
from rig import Rig

TILE = 32  # keys; what stock takes on sm_120
ROWS, DRAFT_TOKENS, SM_SCALE = 32, 16, 192**-0.5


def stock(q: torch.Tensor, prefix: torch.Tensor, draft: torch.Tensor, sm_scale: float) -> torch.Tensor:
    """[rows, 512] bf16. q [rows, 576] bf16, prefix [keys, 576] fp8, draft [tokens, 576] bf16, seen by every row."""
    best = torch.full((len(q), 1), -torch.inf)
    total, out = torch.zeros(len(q), 1), torch.zeros(len(q), 512)
    for keys in (prefix, draft):
        query = q.to(keys.dtype).float()
        for tile in keys.split(TILE):
            scores = query @ tile.float().T * sm_scale
            best, before = torch.maximum(best, scores.amax(1, keepdim=True)), best
            weights, fade = (scores - best).exp(), (before - best).exp()
            total = total * fade + weights.sum(1, keepdim=True)
            out = out * fade + weights.to(keys.dtype).float() @ tile[:, :512].float()
    return (out / total).bfloat16()


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("dtype", list(REL_L2_BOUND_FP8_POOL), ids=str)
def test_it_is_stocks_arithmetic(dtype: torch.dtype, sharpness: float) -> None:
    rig = Rig(prefixes=(240,), fp8_pool=dtype)
    step = rig.step()
    step.q, step.mask = step.q * sharpness, None
    slots = rig.runner.req_to_token_pool.req_to_token[1, :240].long()
    prefix = rig.pool.get_key_buffer(0)[:, 0].view(torch.uint8)[slots].view(dtype)
    ours = [stock(step.q[i], prefix, step.k[: i + 1, 0], rig.layer.scaling) for i in range(rig.draft_tokens)]
    assert distance(torch.stack(ours), rig.run(step).double()) < 1e-3


# The range of stock's distance from float64 that kernel.py and patch/README.md name.
OFF_BY = {torch.float8_e4m3fn: (0.02, 0.11), torch.float8_e5m2: (0.04, 0.21)}


@pytest.mark.parametrize("deviation", [0.25, 2.0, 8.0])
@pytest.mark.parametrize("keys", [64, 1024, 65536])
@pytest.mark.parametrize("dtype", list(REL_L2_BOUND_FP8_POOL), ids=str)
def test_stock_is_off_by_less_than_the_bound(dtype: torch.dtype, keys: int, deviation: float) -> None:
    random = torch.Generator().manual_seed(0)
    prefix = torch.randn(keys, 576, generator=random).to(dtype)
    draft = torch.randn(DRAFT_TOKENS, 576, generator=random).bfloat16()
    q = (torch.randn(ROWS, 576, generator=random) * deviation / (576**0.5 * SM_SCALE)).bfloat16()
    values = torch.cat([prefix.double(), draft.double()])
    exact = (q.double() @ values.T * SM_SCALE).softmax(-1) @ values[:, :512]
    off = distance(stock(q, prefix, draft, SM_SCALE), exact)
    least, most = OFF_BY[dtype]
    assert least < off < most < REL_L2_BOUND_FP8_POOL[dtype]
