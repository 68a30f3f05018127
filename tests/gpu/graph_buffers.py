"""Buffers as SGLang captures them, and what a replay finds in them."""

from __future__ import annotations

import torch

from cases import Case, MaskKind, make_call, with_pool
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from oracle import DEVICE, on_gpu

BATCH, T, HEADS, CONTEXT, SLOTS = 6, 8, 8, 3000, 9000


def case_of(pool: str, prefixes: tuple[int, ...], mask: MaskKind = "tree") -> Case:
    return with_pool(Case(prefixes, (T,) * len(prefixes), HEADS, mask=mask), pool)


def captured_buffers(pool: str) -> Call:
    """Buffers as SGLang captures them: as long as the longest, prefix 1 on slot 0 for every request."""
    tokens, case = BATCH * T, case_of(pool, (1,))
    rows = torch.full((SLOTS, 1, abi.QK_DIM), float("nan"), device=DEVICE).to(case.pool_dtype)
    out = torch.full((tokens, HEADS, abi.V_DIM), 12345.0, dtype=torch.bfloat16, device=DEVICE)
    return Call(
        q_extend=torch.zeros(tokens, HEADS, abi.QK_DIM, dtype=torch.bfloat16, device=DEVICE),
        k_extend=torch.zeros(tokens, 1, abi.QK_DIM, dtype=torch.bfloat16, device=DEVICE),
        v_extend=torch.zeros(tokens, 1, abi.V_DIM, dtype=torch.bfloat16, device=DEVICE),
        o_extend=out,
        k_buffer=rows,
        v_buffer=rows[..., : abi.V_DIM],
        qo_indptr=torch.arange(0, tokens + 1, T, dtype=torch.int64, device=DEVICE),
        kv_indptr=torch.arange(BATCH + 1, dtype=torch.int32, device=DEVICE),
        kv_indices=torch.zeros(BATCH * CONTEXT, dtype=torch.int64, device=DEVICE),
        custom_mask=torch.zeros(BATCH * T * (CONTEXT + T), dtype=torch.uint8, device=DEVICE),
        is_causal=True,
        mask_indptr=torch.zeros(BATCH + 1, dtype=torch.int64, device=DEVICE),
        max_len_extend=T,
        k_scale=case.k_scale,
        v_scale=case.v_scale,
        sm_scale=case.scale / abi.QK_DIM**0.5,
    )


def refill(buffers: Call, case: Case, seed: int, padded: int = 1) -> None:
    """New contents for the captured buffers; requests beyond the case's are padding: SGLang's, of one prefix entry on
    slot 0, or as long as `padded` says, and full of NaN."""
    real = len(case.prefixes)
    call = on_gpu(make_call(case, seed))
    entries, padding = int(call.kv_indptr[-1]), torch.arange(1, BATCH - real + 1, device=DEVICE)
    pool = buffers.k_buffer.view(torch.uint8)
    pool.fill_(0xFF)  # NaN in every dtype
    # Shifted by one: slot 0 is the sink.
    pool[1 : 1 + len(call.k_buffer)] = call.k_buffer.view(torch.uint8)
    buffers.kv_indices.fill_(2**40)
    buffers.kv_indices[:entries] = call.kv_indices[:entries] + 1
    buffers.kv_indices[entries : entries + padded * len(padding)] = 0
    buffers.kv_indptr[: real + 1] = call.kv_indptr
    buffers.kv_indptr[real + 1 :] = entries + padding * padded
    buffers.custom_mask.fill_(1)
    buffers.custom_mask[: len(call.custom_mask)] = call.custom_mask
    buffers.mask_indptr[: real + 1] = call.mask_indptr
    buffers.mask_indptr[real + 1 :] = call.mask_indptr[-1] + padding * T * (T + padded)
    for name in ("q_extend", "k_extend", "v_extend"):
        getattr(buffers, name).fill_(float("nan"))
        getattr(buffers, name)[: real * T] = getattr(call, name)
    buffers.o_extend.fill_(12345.0)


def real_part(buffers: Call, real: int) -> Call:
    """The call without its padding."""
    rows = real * T
    short = {name: getattr(buffers, name)[:rows] for name in ("q_extend", "k_extend", "v_extend", "o_extend")}
    return buffers._replace(**short, qo_indptr=buffers.qo_indptr[: real + 1], kv_indptr=buffers.kv_indptr[: real + 1])
