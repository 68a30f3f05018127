"""The calls that the emulator's tests make: small, since a CTA's step takes it a hundredth of a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from cases import Case, make_call, with_pool
from fuzz_shape import Limits
from kdtree_verify.native.call import Call

LIMITS = Limits(pairs=2**14, rows=2**9, keys=800, batch=40)  # of random calls


@dataclass(frozen=True)
class Chosen:
    """A call, and on how many multiprocessors it runs."""

    ctas: int
    case: Case
    pool: str = "bf16"
    bad: Literal["value", "key", "slots"] | None = None  # NaN in a draft token's, or slots outside the pool

    def call(self, seed: int) -> Call:
        call = make_call(with_pool(self.case, self.pool), seed)
        if self.bad == "value":
            call.v_extend[self.case.gap + 1, 0, 3] = float("nan")
        elif self.bad == "key":
            call.k_extend[self.case.gap + 1, 0, 570] = float("nan")
        elif self.bad == "slots":
            call.kv_indices[1::7], call.kv_indices[4::9] = -1, call.k_buffer.shape[0]
        return call


# By how blocks of 32 keys fall to the CTAs, as tests/gpu/sanitize.py has them for a whole GPU.
CHOSEN = (
    Chosen(1, Case((0,), (1,), 1)),  # a row, a key
    Chosen(3, Case((0,), (1,), 1), "e4m3"),
    Chosen(2, Case((33, 0, 64), (9, 16, 5), 3, strided=True, gap=1, mask="any")),
    Chosen(3, Case((33, 0, 64), (9, 16, 5), 3, strided=True, gap=1, mask="any"), "e4m3"),
    Chosen(4, Case((33, 0, 64), (9, 16, 5), 3, strided=True, gap=1, mask="any"), "e5m2"),
    Chosen(12, Case((700,), (8,), 8)),  # one tile among many CTAs: the merge kernel's warps share rows
    Chosen(10, Case((32 * 9,), (8,), 8), "e4m3"),  # a block a CTA, the drafts on the last
    Chosen(4, Case((48 * 4,), (5,), 6)),  # nothing for the last CTA; a tile of 30 rows
    Chosen(3, Case((600,), (16,), 8)),  # two tiles of 20 blocks: a CTA walks parts of both
    Chosen(5, Case((200, 70), (40, 33), 4, mask="chain", indptr_dtype=torch.int64, indices_dtype=torch.int32)),
    Chosen(2, Case((5,) * 36, (2,) * 36, 8, mask_dtype=torch.bool)),  # more than 32 requests, many a CTA
    Chosen(3, Case((1, 40) * 18, (1, 5) * 18, 8), "e5m2"),  # the same, tiles of 8 and 40 rows
    Chosen(5, Case((9, 30, 0, 70, 4), (0, 3, 0, 0, 2), 5)),  # requests with no rows
    Chosen(6, Case((40, 0), (70, 99), 2, mask="any")),  # segments that begin and end among the drafts
    Chosen(12, Case((10, 0), (150, 120), 1, mask="any"), "e4m3"),
    Chosen(4, Case((0,), (100,), 1, mask="chain"), "e5m2"),
    Chosen(6, Case((300, 1, 1, 1), (3, 1, 1, 30), 12), "e4m3"),  # a long one beside short ones
    Chosen(2, Case((9,), (17,), 3, mask="any"), bad="value"),
    Chosen(3, Case((50,), (40,), 2), "e4m3", bad="value"),
    Chosen(2, Case((33,), (35,), 2, mask="any"), bad="key"),
    Chosen(3, Case((70, 40), (7, 2), 5), bad="slots"),
    Chosen(2, Case((70, 40), (7, 2), 5), "e5m2", bad="slots"),
    # Parts of a tile in so many CTAs that 4 and 8 of the merge kernel's warps share a row.
    Chosen(20, Case((32 * 18,), (1,), 2)),
    Chosen(36, Case((32 * 34,), (1,), 1)),
)

RACECHECK = Chosen(2, Case((70, 5), (36, 3), 3))

# What the mutants run: several segments, blocks and parts of tiles in few CTAs.
MUTATED = (
    Chosen(2, Case((150, 40), (40, 9), 4)),
    Chosen(2, Case((5,) * 8, (2,) * 8, 8)),
    Chosen(3, Case((300,), (16,), 8, scale=20.0)),
)
