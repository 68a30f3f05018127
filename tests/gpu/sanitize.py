"""Every kernel of the CUDA library over a few small calls, for compute-sanitizer.

    compute-sanitizer --tool=memcheck --kernel-name kns=kdtree_ python3 tests/gpu/sanitize.py

Each array is an allocation of its own, so that a read or write past its end is seen, and filled by a copy or not at
all, so that initcheck knows what nobody wrote. The second half are calls whose indptrs, indices and mask offsets are
random numbers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "patch" / "src"), str(ROOT / "tests" / "kernel"), str(ROOT / "tests" / "gpu")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from cases import Case, make_call  # noqa: E402
from harness import Harness  # noqa: E402
from hostile_calls import numbers  # noqa: E402
from kdtree_verify import abi  # noqa: E402
from kdtree_verify.call import Call  # noqa: E402
from kdtree_verify.config import Device  # noqa: E402
from kdtree_verify.library import load  # noqa: E402
from oracle import DEVICE, on_gpu  # noqa: E402

CASES = [
    Case((0,), (1,), 1),
    Case((33, 0, 64), (9, 16, 5), 3, strided=True, gap=1, mask="any"),
    Case((3000,), (8,), 8),
    Case((900, 70), (40, 33), 4, mask="chain", indptr_dtype=torch.int64, indices_dtype=torch.int32),
    Case((5,) * 300, (2,) * 300, 8, mask_dtype=torch.bool),
]


def hostile_call(random: np.random.Generator) -> Call:
    """Two heads, three requests, up to eleven tokens; numbers in and around their ranges, and far away."""
    tokens, slots = int(random.integers(1, 12)), int(random.integers(1, 30))
    entries, mask_bytes = int(random.integers(1, 60)), int(random.integers(1, 400))
    index = np.int32 if random.random() < 0.5 else np.int64

    def indices(count: int, limit: int, dtype: type) -> torch.Tensor:
        return torch.from_numpy(numbers(random, count, limit, dtype))

    pool = torch.ones(slots, 1, abi.QK_DIM).bfloat16()
    return Call(
        q_extend=torch.ones(tokens, 2, abi.QK_DIM).bfloat16(),
        k_extend=torch.ones(tokens, 1, abi.QK_DIM).bfloat16(),
        v_extend=torch.ones(tokens, 1, abi.V_DIM).bfloat16(),
        o_extend=torch.zeros(tokens, 2, abi.V_DIM).bfloat16(),
        k_buffer=pool,
        v_buffer=pool[..., : abi.V_DIM],
        qo_indptr=indices(4, tokens, index),
        kv_indptr=indices(4, entries, index),
        kv_indices=indices(entries, slots - 1, index),
        custom_mask=torch.from_numpy(random.integers(0, 2, mask_bytes).astype(np.uint8)),
        is_causal=True,
        mask_indptr=indices(3, mask_bytes, np.int64),
        max_len_extend=8,
        k_scale=1.0,
        v_scale=1.0,
        sm_scale=0.1,
    )


def main() -> None:
    harness = Harness(load(Path(os.environ.get("KDTREE_LIBRARY_DIR", ROOT / "build" / "lib")), Device.CUDA), DEVICE)
    harness.records = torch.zeros(harness.records.shape, dtype=torch.uint8).to(DEVICE)
    harness.workspace = torch.empty_like(harness.workspace)
    random = np.random.default_rng(5)
    calls = [make_call(case, seed) for seed, case in enumerate(CASES)] + [hostile_call(random) for _ in range(30)]
    calls[0].v_extend[0, 0, 3] = float("nan")
    for call in map(on_gpu, calls):
        assert harness.verify(call) == abi.Status.OK
        assert harness.compare(call, call.o_extend) == abi.Status.OK
        torch.cuda.synchronize()
    stream = torch.cuda.current_stream().cuda_stream
    assert harness.library.count(harness.records.data_ptr(), None, 0, stream) == abi.Status.OK
    record = harness.record
    print(f"{record.kernel_calls} calls, {record.kernel_rows} rows, {record.out_of_range} reads refused")


if __name__ == "__main__":
    main()
