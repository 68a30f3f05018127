"""Makes patch/src/kdtree_verify/selftest/golden.npz: float64 results for the self-test's requests.

    PYTHONPATH=patch/src python patch/tools/make_golden.py [OUTPUT.npz]

The same file, byte for byte, on every run. It holds float32, whose rounding is 2^-16 of a bf16 step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from kdtree_verify.native.abi import V_DIM
from kdtree_verify.selftest import golden

DEFAULT_OUTPUT = Path(__file__).parents[1] / "src" / "kdtree_verify" / "selftest" / "golden.npz"
CPU = torch.device("cpu")


def attention(request: golden.Request) -> torch.Tensor:
    """float64 [256 tokens, 16 patterns, 512]: the exact result, as the C header defines it."""
    query = golden.query(request, golden.TOKENS, golden.PATTERNS, CPU).double()
    prefix = golden.pool_rows(request, CPU).double()
    keys = torch.cat([prefix * request.k_scale, golden.draft_keys(request, golden.TOKENS, CPU).double()])
    values = torch.cat([prefix[:, :V_DIM] * request.v_scale, golden.draft_values(request, golden.TOKENS, CPU).double()])
    seen = torch.cat(
        [
            torch.ones(golden.TOKENS, request.prefix, dtype=torch.bool),
            golden.visible(request, golden.TOKENS),
        ],
        dim=1,
    )
    scores = golden.SM_SCALE * torch.einsum("thd,nd->thn", query, keys)
    scores.masked_fill_(~seen[:, None, :], -torch.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num_(0.0)  # a row that sees nothing: zeros
    return weights @ values


def record(request: golden.Request) -> np.ndarray:
    """float32 [256, 16, 2]: of each row one column and the signed sum of all."""
    output = attention(request)
    column = output.gather(-1, golden.columns(request)[..., None])[..., 0]
    return torch.stack([column, output @ golden.signs()], dim=-1).float().numpy()


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUTPUT
    np.savez(output, **{name: record(request) for name, request in golden.REQUESTS.items()})
    print(f"{output}: {len(golden.REQUESTS)} requests, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
