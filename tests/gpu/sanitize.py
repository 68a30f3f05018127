"""Every kernel of the CUDA library over small calls, for compute-sanitizer.

    compute-sanitizer --tool=memcheck --kernel-name kns=kdtree_ python3 tests/gpu/sanitize.py [SEEDS]

racecheck needs a library that is built for it, see kernel/cuda/barriers.cuh, and --num-cuda-barriers=64.

Each array is an allocation of its own, so that a read or write past its end is seen, and filled by a copy or not at
all: initcheck sees copies and what the kernels of that name write, but nothing of torch's. First come calls chosen for
how they are split over the CTAs, then SEEDS (40) of the fuzz tests' calls, then ones whose indptrs, indices and mask
offsets are random numbers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "patch" / "src"), str(ROOT / "tests" / "kernel")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from cases import POOLS, Case, make_call, with_pool  # noqa: E402
from fuzz import fuzz_call  # noqa: E402
from fuzz_shape import Limits  # noqa: E402
from harness import Harness  # noqa: E402
from hostile_calls import numbers  # noqa: E402
from kdtree_verify.config import Device  # noqa: E402
from kdtree_verify.native import abi  # noqa: E402
from kdtree_verify.native.call import Call, gate_args  # noqa: E402
from kdtree_verify.native.library import load  # noqa: E402
from kdtree_verify.rank.box import Box  # noqa: E402
from kdtree_verify.rank.records import Model  # noqa: E402
from oracle import DEVICE, on_gpu  # noqa: E402

SEEDS, HOSTILE_CALLS = 40, 30
LIMITS = Limits(pairs=2**18, rows=2**11, keys=1500, batch=33)


def cases(ctas: int) -> list[Case]:
    """Calls by how their blocks of 32 keys fall to the CTAs, as even shares of consecutive ones."""
    return [
        Case((0,), (1,), 1),  # a row, a key
        Case((33, 0, 64), (9, 16, 5), 3, strided=True, gap=1, mask="any"),
        Case((3000,), (8,), 8),  # segments of one step, one tile among many CTAs
        Case((32 * (ctas - 1),), (8,), 8),  # a block a CTA, the drafts on the last
        Case((48 * ctas,), (5,), 6),  # two blocks a CTA, nothing for the last quarter; a tile of 30 rows
        Case((900, 70), (40, 33), 4, mask="chain", indptr_dtype=torch.int64, indices_dtype=torch.int32),
        Case((5,) * 300, (2,) * 300, 8, mask_dtype=torch.bool),  # several requests a CTA, tiles of 16 rows
        Case((1, 40) * 150, (1, 5) * 150, 8),  # the same, tiles of 8 and 40 rows
        Case((0,) * (ctas + 7), (1,) * (ctas + 7), 33),  # requests of one block, two a CTA; tiles of 33 rows
        Case((40, 0, 7), (256, 250, 99), 4, mask="any"),  # segments that begin and end among the drafts
        Case((0,), (256,), 2, mask="chain"),
        Case((2000, 1, 1, 1), (3, 1, 1, 30), 12),  # a long one beside short ones
    ]


def hostile_call(random: np.random.Generator) -> Call:
    """Two heads, three requests, up to eleven tokens, any pool; numbers in and around their ranges, and far away."""
    tokens, slots = int(random.integers(1, 12)), int(random.integers(1, 30))
    entries, mask_bytes = int(random.integers(1, 60)), int(random.integers(1, 400))
    index = np.int32 if random.random() < 0.5 else np.int64

    def indices(count: int, limit: int, dtype: type) -> torch.Tensor:
        return torch.from_numpy(numbers(random, count, limit, dtype))

    pool = torch.ones(slots, 1, abi.QK_DIM).to(POOLS[str(random.choice(list(POOLS)))])
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


def calls(seeds: int, random: np.random.Generator) -> Iterator[Call]:
    pools = list(POOLS)
    for number, case in enumerate(cases(torch.cuda.get_device_properties(DEVICE).multi_processor_count)):
        for pool in pools if number < 2 else [pools[number % len(pools)]]:
            yield make_call(with_pool(case, pool), number)
    broken = make_call(Case((9,), (17,), 3, mask="any"))
    broken.v_extend[0, 0, 3] = float("nan")
    yield broken
    for seed in range(seeds):
        yield fuzz_call(seed, LIMITS, torch.device("cpu"))[0]
    for _ in range(HOSTILE_CALLS):
        yield hostile_call(random)


def main() -> None:
    harness = Harness(load(Path(os.environ.get("KDTREE_LIBRARY_DIR", ROOT / "build" / "lib")), Device.CUDA), DEVICE)
    harness.records = torch.zeros(harness.records.shape, dtype=torch.uint8).to(DEVICE)
    harness.shapes = torch.zeros(harness.shapes.shape, dtype=torch.uint8).to(DEVICE)
    harness.workspace = torch.empty_like(harness.workspace)
    random = np.random.default_rng(5)
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    box, kept = Box(DEVICE, 1 << 22), 0
    box._state.copy_(torch.zeros(box._state.shape, dtype=torch.uint8))
    stream = torch.cuda.current_stream().cuda_stream
    counter = torch.zeros(1, dtype=torch.int64).to(DEVICE)
    for call in calls(seeds, random):
        on_card = on_gpu(call)
        assert harness.verify(on_card) == abi.Status.OK
        assert harness.compare(on_card, on_card.o_extend) == abi.Status.OK
        off = (on_card.o_extend.cpu() * 2).to(DEVICE)
        args = ctypes.pointer(box.args(on_card, off, Model.TARGET, 0))
        assert harness.compare(on_card, off, rel_l2_bound=0.02, box=args) == abi.Status.OK
        gated = on_card._replace(
            qo_indptr=torch.empty_like(on_card.qo_indptr), kv_indptr=torch.empty_like(on_card.kv_indptr)
        )
        gate = gate_args(on_card, gated)
        gate.counter, gate.every, gate.device, gate.stream = counter.data_ptr(), 2, 0, stream
        assert harness.library.gate(gate) == abi.Status.OK
        torch.cuda.synchronize()
        kept += box.take() is not None
    assert kept > 0
    stamp = torch.zeros(1, dtype=torch.int64).to(DEVICE)
    assert harness.library.stamp(stamp.data_ptr(), 0, stream) == abi.Status.OK
    before = int(counter)
    assert harness.library.count(counter.data_ptr(), None, 0, stream) == abi.Status.OK
    assert (int(counter), int(stamp) > 0) == (before + 1, True)
    record = harness.record
    print(f"{record.kernel_calls} calls, {record.kernel_rows} rows, {record.out_of_range} reads refused")


if __name__ == "__main__":
    main()
