"""Random verify calls on one device, many out of one pool of KV rows."""

from __future__ import annotations

import math
from itertools import accumulate

import torch

from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call

from .cells import Cell

DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FP8_DESCALE = 0.25
SCORE_DEVIATION = 3.0
"""Standard deviation of the scores: a softmax that a few keys of a thousand decide."""

QUERY_LEAN = 0.25
"""How far queries lean, in their own standard deviations: their scores with the prefix hardly change."""

UNWRITTEN = 12345.0
_ROWS_AT_ONCE = 1 << 20


class Inputs:
    """Makes calls on `device`, reproducibly.

    The pool's rows are made once for all cells; a cell uses the first rows of it that it needs, in random order, so
    that its memory is as scattered as in a pool of its own.

    Args:
        device: Where the tensors lie.
        slots: The most slots that one cell's calls use together.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        self.device = device
        self.slots = slots
        self._pools: dict[str, torch.Tensor] = {}

    def _pool(self, kind: str) -> torch.Tensor:
        if kind not in self._pools:
            generator = torch.Generator(self.device).manual_seed(1)
            # Slot 0 is where SGLang sends padding: never attended here.
            pool = torch.empty(self.slots + 1, 1, QK_DIM, dtype=DTYPES[kind], device=self.device)
            for rows in pool.split(_ROWS_AT_ONCE):
                values = torch.randn(rows.shape, generator=generator, dtype=torch.bfloat16, device=self.device)
                rows.copy_(values if kind == "bf16" else values / FP8_DESCALE)
            self._pools[kind] = pool
        return self._pools[kind]

    def calls(self, cell: Cell, count: int, seed: int = 0) -> list[Call]:
        """`count` calls of the cell's shape that share no pool row, query, draft row or mask.

        Every request has a draft tree of its own. As in absorbed MLA, a draft's value is the beginning of its key.
        Queries and draft keys lean towards one direction, so much that a draft token weighs like a whole prefix:
        a mask that is read wrongly shows, however long the prefix.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        used = sum(cell.lengths)
        pool = self._pool(cell.pool)[: count * used + 1]
        order = torch.randperm(count * used, generator=generator, device=self.device) + 1
        requests = len(cell.lengths)
        trees = tree_masks(count * requests, cell.drafts, seed).view(count, requests, cell.drafts, cell.drafts)
        trees = trees.to(self.device)
        tokens = requests * cell.drafts
        mask_sizes = [cell.drafts * (length + cell.drafts) for length in cell.lengths]
        descale = 1.0 if cell.pool == "bf16" else FP8_DESCALE

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=self.device, dtype=torch.bfloat16)

        def indptr(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([0, *accumulate(sizes)], dtype=dtype, device=self.device)

        sm_scale = SCORE_DEVIATION / QK_DIM**0.5
        direction = normal(QK_DIM).sign()
        weight = math.log(max(cell.prefix, 1)) + SCORE_DEVIATION**2 / 2  # of a prefix, as a score
        draft_lean = weight / (QUERY_LEAN * QK_DIM * sm_scale)

        made = []
        for i in range(count):
            k = normal(tokens, 1, QK_DIM) + draft_lean * direction
            made.append(
                Call(
                    q_extend=normal(tokens, cell.heads, QK_DIM) + QUERY_LEAN * direction,
                    k_extend=k,
                    v_extend=k[..., :V_DIM].contiguous(),
                    o_extend=torch.full(
                        (tokens, cell.heads, V_DIM), UNWRITTEN, dtype=torch.bfloat16, device=self.device
                    ),
                    k_buffer=pool,
                    v_buffer=pool[..., :V_DIM],
                    qo_indptr=indptr([cell.drafts] * requests, torch.int64),
                    kv_indptr=indptr(list(cell.lengths), torch.int32),
                    # A tail that no request names, as SGLang's buffers have one.
                    kv_indices=torch.cat([order[i * used : (i + 1) * used], order.new_zeros(1)]),
                    custom_mask=_mask(cell, trees[i]),
                    is_causal=True,
                    mask_indptr=indptr(mask_sizes, torch.int64),
                    max_len_extend=cell.drafts,
                    k_scale=descale,
                    v_scale=descale,
                    sm_scale=sm_scale,
                )
            )
        return made


def tree_masks(count: int, nodes: int, seed: int) -> torch.Tensor:
    """bool [count, nodes, nodes]: random trees, in which each node sees itself and its ancestors."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.eye(nodes, dtype=torch.bool).repeat(count, 1, 1)
    every = torch.arange(count)
    for node in range(1, nodes):
        parents = torch.randint(0, node, (count,), generator=generator)
        masks[:, node] |= masks[every, parents]
    return masks


def _mask(cell: Cell, trees: torch.Tensor) -> torch.Tensor:
    """Flat bool: per request its rows of prefix + drafts bytes."""
    blocks = []
    for length, tree in zip(cell.lengths, trees, strict=True):
        block = torch.ones(cell.drafts, length + cell.drafts, dtype=torch.bool, device=trees.device)
        block[:, length:] = tree
        blocks.append(block.flatten())
    return torch.cat(blocks)
