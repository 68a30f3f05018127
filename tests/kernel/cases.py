"""Tree-verify calls made from a seed, as SGLang's extend_attention_fwd would receive them.

Whatever a call does not name is poisoned: NaN in pool rows, query and draft rows; huge indices past
kv_indptr's end; nonzero bytes in the mask's prefix columns and tail.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Literal

import torch

from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call

MaskKind = Literal["tree", "any", "chain"]
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
POOLS = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # what the CUDA library takes


@dataclass(frozen=True)
class Case:
    """A call's shape.

    Attributes:
        prefixes, drafts: Prefix length and query rows of each request.
        mask: "tree": ancestors of a best-first tree; "any": arbitrary bits, rows without one among them;
            "chain": no mask is passed.
        strided: Heads, tokens, draft rows and slots lie further apart than their rows are long.
        gap: Rows before the first request's and after the last's, named by no request.
        mask_bytes: What visible draft keys are marked with.
        scale: sm_scale times the standard deviation of q . k.
    """

    prefixes: tuple[int, ...]
    drafts: tuple[int, ...]
    heads: int
    q_dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    pool_dtype: torch.dtype = torch.bfloat16
    out_dtype: torch.dtype = torch.bfloat16
    indptr_dtype: torch.dtype = torch.int32
    indices_dtype: torch.dtype = torch.int64
    mask_dtype: torch.dtype = torch.uint8
    mask: MaskKind = "tree"
    mask_bytes: tuple[int, ...] = (1, 7, 128, 255)
    k_scale: float = 1.0
    v_scale: float = 1.0
    strided: bool = False
    gap: int = 0
    scale: float = 3.0

    def __str__(self) -> str:
        dtypes = "-".join(str(d).split(".")[1] for d in (self.q_dtype, self.pool_dtype, self.out_dtype))
        return f"L{sum(self.prefixes)}-T{sum(self.drafts)}-H{self.heads}-{dtypes}-{self.mask}"


def tree_parents(nodes: int, generator: torch.Generator, width: int = 8, depth: int = 16) -> list[int]:
    """Parents of a draft tree grown best first, as DDTree grows it: -1 for the root, else an earlier node.

    Each position of the draft block has `width` candidates with random log-probabilities; a node's children
    take the next position's candidates. Nodes come in order of probability, so children lie far from their
    parents and branches are uneven.
    """
    steps = torch.log_softmax(4 * torch.randn(depth, width, generator=generator), -1)
    steps = steps.sort(-1, descending=True).values.tolist()
    parents: list[int] = []
    # (cost, parent, position, rank): the child of `parent` that takes the rank-th candidate of `position`.
    heap = [(0.0, -1, 0, 0)]
    while len(parents) < nodes:
        cost, parent, position, rank = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        if parent >= 0 and rank + 1 < width:
            step = steps[position - 1]
            heapq.heappush(heap, (cost + step[rank] - step[rank + 1], parent, position, rank + 1))
        if position < depth:
            heapq.heappush(heap, (cost - steps[position][0], node, position + 1, 0))
    return parents


def tree_mask(parents: list[int]) -> torch.Tensor:
    """bool [T, T]: each node sees itself and its ancestors."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def fp8_edges(
    rows: torch.Tensor, dtype: torch.dtype, scale: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The rows, finite in the fp8 dtype; 2% are subnormals or zeros of both signs, 0.1% the largest finite number, or
    8 / scale where that is smaller: larger ones would leave every row one key to see."""
    limits = torch.finfo(dtype)
    where = torch.rand(rows.shape, generator=generator, device=rows.device)
    subnormals = torch.copysign(torch.floor(where * 50 / limits.eps) * limits.tiny * limits.eps, rows)
    largest = torch.copysign(torch.full_like(rows, min(limits.max, 8 / scale)), rows)
    rows = torch.where(where < 0.02, subnormals, torch.where(where > 0.999, largest, rows))
    return rows.clamp(-limits.max, limits.max)


def with_pool(case: Case, pool: str) -> Case:
    """The case with a pool of POOLS; an fp8 one scaled, so that its numbers span what fp8 holds."""
    dtype = POOLS[pool]
    if dtype not in FP8 or case.k_scale != 1.0:
        return replace(case, pool_dtype=dtype)
    k_scale = {"e4m3": 0.021, "e5m2": 0.0003}[pool]
    return replace(case, pool_dtype=dtype, k_scale=k_scale, v_scale=1.3 * k_scale)


def fill_nan(tensor: torch.Tensor, value: float) -> None:
    """Puts `value` where NaN or Inf is. torch's own nan_to_num_ takes no fp8."""
    numbers = tensor.float()
    tensor.copy_(torch.where(numbers.isfinite(), numbers, value))


def make_call(case: Case, seed: int = 0) -> Call:
    """The case's call; o_extend is a buffer of 12345s."""
    generator = torch.Generator().manual_seed(seed)
    tokens = 2 * case.gap + sum(case.drafts)
    named = slice(case.gap, tokens - case.gap)
    prefix = sum(case.prefixes)
    slots = prefix + 40

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def poisoned(rows: torch.Tensor, keep: torch.Tensor | slice, dtype: torch.dtype, stride: int) -> torch.Tensor:
        # A view of a wider NaN buffer: [count, ...] rows `stride` elements apart, only `keep` filled.
        wide = torch.full((*rows.shape[:-1], stride), float("nan")).to(dtype)
        view = wide[..., : rows.shape[-1]]
        view.view(torch.uint8)[keep] = rows[keep].to(dtype).view(torch.uint8)  # torch assigns bytes of any dtype
        return view

    order = torch.randperm(slots, generator=generator)
    used = order[:prefix]
    pool_rows = normal(slots, 1, QK_DIM) / case.k_scale
    if case.pool_dtype in FP8:
        pool_rows = fp8_edges(pool_rows, case.pool_dtype, case.k_scale, generator)
    pool_stride = 1216 if case.strided else QK_DIM
    pool = poisoned(pool_rows, used, case.pool_dtype, pool_stride)

    q_rows = normal(tokens, case.heads, QK_DIM)
    if case.strided and seed % 2:  # heads outermost, as a batched matmul over heads leaves them
        q = poisoned(q_rows.transpose(0, 1), slice(0, 0), case.q_dtype, 592).transpose(0, 1)
        q[named] = q_rows[named].to(case.q_dtype)
    else:
        q = poisoned(q_rows, named, case.q_dtype, 608 if case.strided else QK_DIM)
    k = poisoned(normal(tokens, 1, QK_DIM), named, case.kv_dtype, 640 if case.strided else QK_DIM)
    v = poisoned(normal(tokens, 1, V_DIM), named, case.kv_dtype, 528 if case.strided else V_DIM)
    out = torch.full((tokens, case.heads, 544 if case.strided else V_DIM), 12345.0).to(case.out_dtype)[..., :V_DIM]

    skipped = 3 if case.gap else 0  # entries of kv_indices before the first request's
    indices = torch.full((skipped + prefix + 9,), torch.iinfo(case.indices_dtype).max, dtype=case.indices_dtype)
    indices[skipped : skipped + prefix] = used
    mask, mask_indptr = _mask(case, generator)
    return Call(
        q_extend=q,
        k_extend=k,
        v_extend=v,
        o_extend=out,
        k_buffer=pool,
        v_buffer=pool[..., :V_DIM],
        qo_indptr=_indptr(case.drafts, case.gap, case.indptr_dtype),
        kv_indptr=_indptr(case.prefixes, skipped, case.indptr_dtype),
        kv_indices=indices,
        custom_mask=mask,
        is_causal=True,
        mask_indptr=mask_indptr,
        max_len_extend=max(case.drafts),
        k_scale=case.k_scale,
        v_scale=case.v_scale,
        sm_scale=case.scale / QK_DIM**0.5,
    )


def _indptr(lengths: tuple[int, ...], first: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([first, *lengths]).cumsum(0).to(dtype)


def _mask(case: Case, generator: torch.Generator) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if case.mask == "chain":
        return None, None
    blocks = []
    for prefix, rows in zip(case.prefixes, case.drafts, strict=True):
        if case.mask == "tree":
            visible = tree_mask(tree_parents(rows, generator)) if rows else torch.zeros(0, 0, dtype=torch.bool)
        else:
            visible = torch.rand(rows, rows, generator=generator) < 0.3
            visible[2::5] = False
        # The prefix columns mean nothing.
        prefix_part = torch.randint(0, 2, (rows, prefix), generator=generator, dtype=torch.uint8)
        marks = torch.tensor(case.mask_bytes, dtype=torch.uint8)
        draft_part = marks[torch.randint(len(marks), (rows, rows), generator=generator)] * visible
        blocks.append(torch.cat([prefix_part, draft_part], 1).flatten())
    tail = torch.full((11,), 255, dtype=torch.uint8)
    return torch.cat([*blocks, tail]).view(case.mask_dtype), _indptr(tuple(map(len, blocks)), 0, torch.int64)
