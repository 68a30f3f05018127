"""The calls that sglang_recorder.py makes and test_sglang.py asks for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cases import Case

F32, BF16, E4M3, E5M2 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2

BOOLS = (1,)  # what SGLang itself writes into a mask
KERNEL_CASES = {
    "plain": Case((64,), (16,), 4, mask_bytes=BOOLS),
    "ragged": Case((40, 0, 131), (16, 9, 33), 2, gap=2, mask_bytes=BOOLS),
    "wide tree": Case((20,), (64,), 2, mask_bytes=BOOLS),
    "chain": Case((30, 7), (12, 12), 3, mask="chain"),
    "f32": Case((64, 31), (16, 16), 3, q_dtype=F32, kv_dtype=F32, pool_dtype=F32, out_dtype=F32, mask_bytes=BOOLS),
    "e4m3 pool": Case((64, 31), (16, 16), 2, pool_dtype=E4M3, k_scale=0.5, v_scale=0.5, mask_bytes=BOOLS),
    "e5m2 pool": Case((64, 31), (16, 16), 2, pool_dtype=E5M2, mask_bytes=BOOLS),
    "bool mask, int64 indptr": Case(
        (33, 5), (8, 8), 4, mask_dtype=torch.bool, indptr_dtype=torch.int64, mask_bytes=BOOLS
    ),
    "any nonzero mask byte": Case((33, 5), (8, 8), 4),
}


@dataclass(frozen=True)
class BackendCase:
    """One forward_extend. `graph_batch`: captured batch size, the rest padding; None: eager."""

    prefixes: tuple[int, ...]
    drafts: int
    heads: int
    spec: str = "eagle"
    graph_batch: int | None = None
    dtype: torch.dtype = BF16
    fp8_pool: bool = False
    scale: float | None = None
    page_size: int = 1
    from_pool: bool = False  # k = v = None: the layer has written them itself


BACKEND_CASES = {
    "eager eagle": BackendCase((64, 131), 16, 4),
    "eager ngram": BackendCase((5, 70, 33), 12, 3, spec="ngram"),
    "eager f32": BackendCase((64, 31), 8, 4, dtype=F32),
    "eager page 64": BackendCase((64, 131), 8, 2, page_size=64),
    "eager scaled": BackendCase((20, 31), 8, 4, scale=0.5),
    "eager fp8": BackendCase((64, 31), 8, 4, fp8_pool=True, scale=0.5),
    "eager from pool": BackendCase((20, 31), 8, 4, from_pool=True),
    "replay eagle": BackendCase((64, 131), 16, 3, graph_batch=4),
    "replay ngram": BackendCase((0, 90, 17), 12, 2, spec="ngram", graph_batch=6),
    "replay f32": BackendCase((64,), 8, 4, graph_batch=2, dtype=F32),
}
