"""The self-test's requests: inputs made from integers, and the float64 results recorded for them.

Inputs come from a counter-based integer hash, so that every torch version and device makes the same bytes:
each element is a byte of a hashed word, as a signed number over 128, exact in bf16. In an fp8 pool it is the byte
itself, with its magnitude taken modulo `codes`: the small ones, so that subnormals weigh, or all finite ones.

Query heads are one of 16 patterns, and a request has up to 256 draft tokens whose parents always precede them. So
one recording, for 256 tokens x 16 patterns, holds for any number of heads and, by its first rows, of draft tokens.

Recorded for each (token, pattern) are two numbers (patch/tools/make_golden.py makes golden.npz):
  - one column of the output row, another for each row: the columns of all rows cover the 512;
  - the sum of the row's 512 columns, each with a sign: no column can be wrong without moving it.

So that a key that is lost shows in any row, scores have a standard deviation of about 2 (SM_SCALE), and the
last column lifts (`_lift`) the draft keys to about the weight of the prefix, and the prefix's last key to a
large share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch

from ..native.abi import QK_DIM, V_DIM

TOKENS = 256
PATTERNS = 16
SM_SCALE = 0.25

_QUERY, _KEY, _VALUE, _POOL, _TREE, _COLUMN, _SIGN = range(7)
_LIFT_COLUMN = QK_DIM - 1  # in the rope part: it moves scores and never values
_LIFT_QUERY = 8.0  # the query's value in that column
_WORD = 0xFFFFFFFF
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Request:
    """A recorded request.

    Attributes:
        name: Its key in golden.npz.
        seed: What tells its inputs from those of the others.
        prefix: Number of prefix keys.
        causal: Draft tokens form a chain and no mask is given; otherwise the tree of `parents`.
        blind_rows: Every seventh row (5, 12, ...) has no mask bit; with prefix 0 its result is zeros.
        k_scale, v_scale: Descales of the prefix.
        pool_dtype: bf16, or an fp8 format.
        codes: With fp8, magnitudes of its bytes, zero among them: 0..codes-1.
    """

    name: str
    seed: int
    prefix: int
    causal: bool = False
    blind_rows: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0
    pool_dtype: torch.dtype = torch.bfloat16
    codes: int = 0

    @property
    def largest_value(self) -> float:
        """No output element can be larger than this: a softmax only averages."""
        largest_code = torch.tensor([self.codes - 1], dtype=torch.uint8) if self.codes else None
        in_pool = 1.0 if largest_code is None else float(largest_code.view(self.pool_dtype).float())
        return max(1.0, self.v_scale * in_pool)


REQUESTS = {
    request.name: request
    for request in (
        Request("p0", 1, 0, blind_rows=True),
        Request("p1", 2, 1),
        Request("p15", 3, 15),
        Request("p16", 4, 16),
        Request("p17", 5, 17),
        Request("p64", 6, 64),
        Request("p65", 7, 65),
        Request("p300", 8, 300),
        Request("p4097", 9, 4097),
        Request("chain130", 10, 130, causal=True),
        Request("scaled40", 11, 40, k_scale=0.5, v_scale=1.5),
        # Subnormals are a quarter of the codes, and up to a tenth of the largest.
        Request("e4m3-low", 12, 100, k_scale=16, v_scale=8, pool_dtype=_E4M3, codes=32),
        Request("e5m2-low", 13, 100, k_scale=4096, v_scale=2048, pool_dtype=_E5M2, codes=16),
        Request("e4m3-all", 14, 100, k_scale=2**-7, v_scale=2**-9, pool_dtype=_E4M3, codes=0x7F),
        Request("e5m2-all", 15, 100, k_scale=2**-14, v_scale=2**-16, pool_dtype=_E5M2, codes=0x7C),
    )
}


def pattern(head: int) -> int:
    """The query pattern of a head. Heads 16 apart have different ones, so that mixing them up shows."""
    return (head + 3 * (head // PATTERNS)) % PATTERNS


def query(request: Request, tokens: int, heads: int, device: torch.device) -> torch.Tensor:
    """[tokens, heads, 576] bf16."""
    values = _values(request.seed, _QUERY, tokens * PATTERNS, QK_DIM, device)
    values[:, _LIFT_COLUMN] = _LIFT_QUERY
    patterns = torch.tensor([pattern(head) for head in range(heads)], device=device)
    return values.view(tokens, PATTERNS, QK_DIM)[:, patterns]


def draft_keys(request: Request, tokens: int, device: torch.device) -> torch.Tensor:
    """[tokens, 576] bf16."""
    keys = _values(request.seed, _KEY, tokens, QK_DIM, device)
    keys[:, _LIFT_COLUMN] = _lift(math.log(max(1.0, request.prefix / 8)))
    return keys


def draft_values(request: Request, tokens: int, device: torch.device) -> torch.Tensor:
    """[tokens, 512] bf16; not the keys' columns, so that reading one for the other shows."""
    return _values(request.seed, _VALUE, tokens, V_DIM, device)


def pool_rows(request: Request, device: torch.device) -> torch.Tensor:
    """[prefix, 576] in the pool's dtype, in the prefix's order."""
    last_lift = _lift(math.log(max(2.0, request.prefix) / 2) + 2)
    if request.codes:
        return _float8_rows(request, last_lift / request.k_scale, device)
    rows = _values(request.seed, _POOL, request.prefix, QK_DIM, device)
    rows[:, _LIFT_COLUMN] = 0.0
    rows[-1:, _LIFT_COLUMN] = last_lift
    return rows


def parents() -> list[int]:
    """The parent of each of the 256 tree nodes, -1 for the root; an earlier node, at most 20 back."""
    words = _hash(0, _TREE, TOKENS, 1, _CPU).flatten().tolist()
    return [-1] + [node - 1 - words[node] % min(node, 20) for node in range(1, TOKENS)]


def visible(request: Request, tokens: int) -> torch.Tensor:
    """bool [tokens, tokens] on the CPU: does row t see draft token j?"""
    if request.causal:
        return torch.ones(tokens, tokens, dtype=torch.bool).tril()
    seen = torch.eye(tokens, dtype=torch.bool)
    for node, parent in enumerate(parents()[1:tokens], start=1):
        seen[node] |= seen[parent]
    if request.blind_rows:
        seen[5::7] = False
    return seen


def columns(request: Request) -> torch.Tensor:
    """int64 [256, 16] on the CPU: the output column that is recorded for each row."""
    return (_hash(request.seed, _COLUMN, TOKENS, PATTERNS, _CPU) >> 8) % V_DIM


def signs() -> torch.Tensor:
    """float64 [512] on the CPU, of -1 and 1."""
    return ((_hash(0, _SIGN, 1, V_DIM, _CPU).flatten() >> 8) % 2 * 2 - 1).double()


def load_recorded() -> dict[str, torch.Tensor]:
    """Request name -> float32 [256, 16, 2] on the CPU: (column, signed sum) of each row."""
    with resources.as_file(resources.files(__package__) / "golden.npz") as path, np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in REQUESTS}


def _lift(score: float) -> float:
    # What a key must hold in the lift column to raise its score by about `score`: a multiple of 1/4, exact.
    return round(4 * score / (SM_SCALE * _LIFT_QUERY)) / 4


def _values(seed: int, stream: int, rows: int, width: int, device: torch.device) -> torch.Tensor:
    words = _hash(seed, stream, rows, width // 4, device)
    signed = (words ^ 0x80000000) - 0x80000000
    return signed.to(torch.int32).view(torch.int8).to(torch.bfloat16).div_(128)


def _float8_rows(request: Request, last_lift: float, device: torch.device) -> torch.Tensor:
    # Made as bytes: few of torch's functions take fp8. The lift is exact in both formats, a test holds it.
    words = _hash(request.seed, _POOL, request.prefix, QK_DIM, device) >> 8
    rows = ((words & 0x7F) % request.codes + (words & 0x80)).to(torch.uint8)
    rows[:, _LIFT_COLUMN] = 0
    rows[-1, _LIFT_COLUMN] = int(torch.tensor([last_lift]).to(request.pool_dtype).view(torch.uint8))
    return rows.view(request.pool_dtype)


def _hash(seed: int, stream: int, rows: int, width: int, device: torch.device) -> torch.Tensor:
    # 32-bit words [rows, width], a function of (seed, stream, row, column) only. int64 holds every product.
    key = int(_mix(torch.tensor(8 * seed + stream + 1)))
    row = torch.arange(rows, device=device)[:, None] << 10
    return _mix((row + torch.arange(width, device=device) + key) & _WORD)


def _mix(words: torch.Tensor) -> torch.Tensor:
    words = (words ^ (words >> 16)).mul_(0x21F0AAAD).bitwise_and_(_WORD)
    words.bitwise_xor_(words >> 15).mul_(0x735A2D97).bitwise_and_(_WORD)
    return words.bitwise_xor_(words >> 15)
