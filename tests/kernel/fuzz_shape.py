"""The shape of a fuzzed call: lengths, heads, pool dtype and what kinds of mask and page layout it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from cases import POOLS
from kdtree_verify.native.abi import MAX_DRAFT_TOKENS, MAX_HEADS, QK_DIM

POOL_DTYPES = tuple(POOLS.values())


@dataclass(frozen=True)
class Limits:
    """How large a call may be: (row, key) pairs, (token, head) rows, prefix keys in all, and requests."""

    pairs: int
    rows: int
    keys: int
    batch: int = 64


@dataclass(frozen=True)
class Shape:
    prefixes: tuple[int, ...]
    drafts: tuple[int, ...]
    heads: int
    pool_dtype: torch.dtype
    layout: str
    masks: str
    pool_stride: int
    distant: bool

    def __str__(self) -> str:
        dtype = str(self.pool_dtype).removeprefix("torch.")
        where = f"{self.layout}{', distant' if self.distant else ''}, slots {self.pool_stride} apart"
        return f"L {self.prefixes}, T {self.drafts}, H {self.heads}, {dtype}, {where}, masks {self.masks}"


def draw_shape(random: Random, limits: Limits, dtypes: tuple[torch.dtype, ...]) -> Shape:
    batch = min(random.choice((1, 1, 2, 3, 5, 8, 17, 33, 64, random.randint(1, 64))), limits.batch)
    heads = random.choice((8, 12, 16, 20)) if random.random() < 0.6 else _longest(random, MAX_HEADS)
    longest_prefix, longest_draft = _longest(random, 20_000), _longest(random, MAX_DRAFT_TOKENS)
    ragged = random.random() < 0.7

    def length(longest: int, usual: tuple[int, ...]) -> int:
        if not ragged:
            return longest
        return random.choice((random.choice(usual), random.randint(0, longest), longest))

    prefixes = [length(longest_prefix, (0, 1, 31, 32, 33, 63, 64, 65)) for _ in range(batch)]
    drafts = [length(longest_draft, (0, 1, 2, 8, 16, 17)) for _ in range(batch)]
    drafts[-1] = max(drafts[-1], 1)
    pairs = limits.pairs ** random.uniform(0.5, 1)

    def too_large() -> Iterator[tuple[list[int], int]]:
        """The lists and requests to halve the length of."""
        while True:
            work = [heads * t * (p + t) for p, t in zip(prefixes, drafts, strict=True)]
            if sum(drafts) * heads > limits.rows and sum(drafts) > 1:
                yield drafts, max(range(batch), key=drafts.__getitem__)
            elif sum(prefixes) > limits.keys:
                yield prefixes, max(range(batch), key=prefixes.__getitem__)
            elif sum(work) > max(pairs, heads):
                largest = max(range(batch), key=work.__getitem__)
                yield (prefixes if prefixes[largest] > drafts[largest] else drafts), largest
            else:
                return

    for lengths, request in too_large():
        lengths[request] //= 2
    drafts[-1] = max(drafts[-1], 1)
    dtype = random.choice(dtypes)
    apart = 16 // dtype.itemsize  # rows begin at 16 bytes
    return Shape(
        prefixes=tuple(prefixes),
        drafts=tuple(drafts),
        heads=heads,
        pool_dtype=dtype,
        layout=random.choice(("scattered", "pages of 16", "pages of 64")),
        masks=random.choice(("mixed", "mixed", "tree", "random", "nothing", "diagonal", "everything", "none")),
        pool_stride=QK_DIM + random.choice((0, 0, apart, 5 * apart)),
        distant=random.random() < 0.2,
    )


def _longest(random: Random, limit: int) -> int:
    """Of any order of magnitude, large ones more often."""
    return int(limit ** random.uniform(0, 1)) if random.random() < 0.6 else random.randint(1, limit)
