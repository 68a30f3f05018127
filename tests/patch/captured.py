"""Captured calls for the replay's tests: made of random numbers, or of a step of the rig."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kdtree_verify.rank.records import Model
from kdtree_verify.replay import reference
from kdtree_verify.replay.capture import Capture
from kdtree_verify.replay.origin import Origin

ORIGIN = Origin(
    at=1_790_000_000.25,
    mode="validate",
    rank="dp0-pp0-tp1",
    model_path="/models/m",
    device="NVIDIA H200 (cuda:1)",
    library={
        "version": "0.1.0",
        "kind": "cuda",
        "archs": "sm_120a",
        "compiler": "nvcc 13.0.88",
        "sha256": "5d" * 32,
        "source_hash": "7e" * 32,
    },
    versions={"kdtree_verify": "0.1.0", "sglang": "0.5.23", "torch": "2.13.0", "cuda": None},
)


def made(
    tokens: int = 5,
    heads: int = 3,
    prefix: int = 40,
    *,
    pool: torch.dtype = torch.bfloat16,
    causal: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    **changes: Any,
) -> Capture:
    """A call of random inputs, answered rightly by both; `changes` are Capture's attributes."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    k = normal(tokens, 576).to(dtype)
    tree = torch.tril(torch.randint(0, 2, (tokens, tokens), generator=random)) | torch.eye(tokens, dtype=torch.int64)
    blank = torch.zeros(tokens, heads, 512, dtype=dtype)
    narrow = pool.itemsize == 1
    capture = Capture(
        q=normal(tokens, heads, 576).to(dtype),
        k=k,
        v=k[:, :512].contiguous(),
        visible=None if causal else tree.to(torch.uint8),
        prefix=normal(prefix, 576).to(pool),
        stock=blank,
        ours=blank,
        model=Model.TARGET,
        layer=7,
        sm_scale=192**-0.5,
        k_scale=0.5 if narrow else 1.0,
        v_scale=1.5 if narrow else 1.0,
        rel_l2=0.5,
        bound=0.02,
        request=1,
        batch=3,
    )
    right = reference.compute(capture).exact.to(dtype)
    return replace(capture, **{"stock": right, "ours": right.clone()} | changes)


def of_step(rig: Any, step: Any, request: int, stock: torch.Tensor, ours: torch.Tensor) -> Capture:
    """A request of the rig's step with the answers given, [tokens, heads, 512] of all its requests."""
    tokens, prefix = rig.draft_tokens, rig.prefixes[request]
    rows = slice(request * tokens, (request + 1) * tokens)
    slots = rig.runner.req_to_token_pool.req_to_token[1 + request, :prefix].long()
    pool = rig.pool.get_key_buffer(0)
    k_scale, v_scale = rig.descales or (1.0, 1.0)
    return Capture(
        q=step.q[rows].contiguous(),
        k=step.k[rows, 0].contiguous(),
        v=step.v[rows, 0].contiguous(),
        visible=None if step.mask is None else step.visible[request].to(torch.uint8),
        prefix=pool.view(torch.uint8)[slots, 0].view(pool.dtype),
        stock=stock[rows].contiguous(),
        ours=ours[rows].contiguous(),
        model=Model.TARGET,
        layer=0,
        sm_scale=rig.layer.scaling,
        k_scale=k_scale,
        v_scale=v_scale,
        rel_l2=0.3,
        bound=0.02,
        request=request,
        batch=len(rig.prefixes),
    )
