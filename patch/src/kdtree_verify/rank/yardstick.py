"""How far stock's kernel and ours each are from float64, on a call of the self-test: what a difference between the two
is to be held against. Measured once, when a rank arms.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..native.abi import V_DIM, LayerRecord, Status
from ..native.call import Call
from ..selftest import golden
from .kernel import Kernel
from .records import Place

logger = logging.getLogger(__name__)

_CASES = {torch.bfloat16: "p64", torch.float8_e4m3fn: "e4m3-all", torch.float8_e5m2: "e5m2-all"}
_MOST_TOKENS = 32  # more heads and tokens say nothing new
_MOST_HEADS = {"cuda": 8, "cpu": 1}  # on a CPU stock's kernel is interpreted, which takes a part of a second a head


@dataclass(frozen=True)
class Yardstick:
    """||kernel - float64|| / ||float64|| over one recorded column of each row and head of `case` (golden.REQUESTS)."""

    stock_rel_l2: float
    kernel_rel_l2: float
    case: str


def measure(
    stock: Callable[..., Any], kernel: Kernel, pool: torch.dtype | None, heads: int, draft_tokens: int
) -> Yardstick | None:
    """Runs both on the case of this pool's dtype. Never raises; None where stock cannot run here, or there is no case.

    Args:
        stock: SGLang's extend_attention_fwd.
        kernel: The proven library on this rank's device.
        pool: The KV pool's dtype; None where SGLang does not say.
        heads: Query heads of the rank.
        draft_tokens: T.
    """
    case = None if pool is None else _CASES.get(pool)
    if case is None:
        return None
    began = time.perf_counter()
    try:
        found = _measure(
            stock, kernel, case, min(heads, _MOST_HEADS[kernel.device.type]), min(draft_tokens, _MOST_TOKENS)
        )
    except Exception as error:
        logger.debug("kdtree: stock's own error is not measured: %r", error)
        return None
    logger.info(
        "kdtree: relative L2 to float64 on %s: stock %.2e, this kernel %.2e (%.1f s)",
        *(found.case, found.stock_rel_l2, found.kernel_rel_l2, time.perf_counter() - began),
    )
    return found


def _measure(stock: Callable[..., Any], kernel: Kernel, case: str, heads: int, draft_tokens: int) -> Yardstick:
    request, device = golden.REQUESTS[case], kernel.device
    call = _call(request, heads, draft_tokens, device)
    stock(*call[: Call._fields.index("sm_scale") + 1])
    ours = torch.empty_like(call.o_extend)
    record = torch.zeros(ctypes.sizeof(LayerRecord) // 8, dtype=torch.int64, device=device)
    status = kernel.verify(call, ours, Place(record.data_ptr(), None))
    if status != Status.OK:
        raise RuntimeError(f"kdtree_verify: {kernel.library.status_text(status)}")

    patterns = torch.tensor([golden.pattern(head) for head in range(heads)])
    columns = golden.columns(request)[:draft_tokens, patterns].to(device)
    expected = golden.load_recorded()[case][:draft_tokens, patterns, 0].double()

    def rel_l2(out: torch.Tensor) -> float:
        got = out.gather(-1, columns[..., None])[..., 0].double().cpu()
        return float((got - expected).norm() / expected.norm())

    return Yardstick(rel_l2(call.o_extend), rel_l2(ours), case)


def _call(request: golden.Request, heads: int, draft_tokens: int, device: torch.device) -> Call:
    """The request alone, as SGLang's backend would call in eager mode; slot 0 of the pool is nobody's."""
    prefix, stored = request.prefix, golden.pool_rows(request, device)
    pool = torch.zeros(1 + prefix, 1, stored.shape[1], dtype=stored.dtype, device=device)
    pool.view(torch.uint8)[1:, 0] = stored.view(torch.uint8)
    seen = golden.visible(request, draft_tokens).to(device)
    mask = torch.cat([torch.ones(draft_tokens, prefix, dtype=torch.bool, device=device), seen], 1).flatten()
    query = golden.query(request, draft_tokens, heads, device).contiguous()

    def offsets(length: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor([0, length], dtype=dtype, device=device)

    return Call(
        q_extend=query,
        k_extend=golden.draft_keys(request, draft_tokens, device)[:, None],
        v_extend=golden.draft_values(request, draft_tokens, device)[:, None],
        o_extend=torch.empty(draft_tokens, heads, V_DIM, dtype=query.dtype, device=device),
        k_buffer=pool,
        v_buffer=pool[..., :V_DIM],
        qo_indptr=offsets(draft_tokens),
        kv_indptr=offsets(prefix),
        kv_indices=torch.arange(1, 1 + prefix, device=device),
        custom_mask=mask,
        is_causal=True,
        mask_indptr=offsets(len(mask), torch.int64),
        max_len_extend=draft_tokens,
        k_scale=request.k_scale,
        v_scale=request.v_scale,
        sm_scale=golden.SM_SCALE,
    )
