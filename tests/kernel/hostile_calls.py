"""Feeds a library with calls whose indptrs, indices and mask offsets are random numbers.

    python hostile_calls.py LIBRARY_FOLDER

Run by test_out_of_range.py under ASan: every array is an allocation of its own, so a read or write outside one ends
the process. Prints the number of calls and of refused reads.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from kdtree_verify.config import Device
from kdtree_verify.native import abi
from kdtree_verify.native.library import Library, load

HEADS, BATCH = 2, 3


def numbers(random: np.random.Generator, count: int, limit: int, dtype: type) -> np.ndarray:
    """Numbers in and around [0, limit], ordered more often than not; some far away."""
    values = random.integers(-2, limit + 3, count)
    if random.random() < 0.7:
        values.sort()
    extreme = np.iinfo(dtype)
    far = random.choice([extreme.min, extreme.max, limit + 10**6, -(10**6)], count)
    return np.where(random.random(count) < 0.1, far, values).astype(dtype)


def hostile_call(library: Library, random: np.random.Generator, record: np.ndarray) -> None:
    tokens, slots = int(random.integers(0, 12)), int(random.integers(0, 30))
    entries, mask_bytes = int(random.integers(0, 60)), int(random.integers(0, 400))
    index, index_type = random.choice([(np.int32, abi.DType.I32), (np.int64, abi.DType.I64)])
    arrays = {
        "q": np.ones((tokens, HEADS, abi.QK_DIM), np.float32),
        "k": np.ones((tokens, abi.QK_DIM), np.float32),
        "v": np.ones((tokens, abi.V_DIM), np.float32),
        "pool": np.ones((slots, abi.QK_DIM), np.float32),
        "out": np.zeros((tokens, HEADS, abi.V_DIM), np.float32),
        "qo_indptr": numbers(random, BATCH + 1, tokens, index),
        "kv_indptr": numbers(random, BATCH + 1, entries, index),
        "kv_indices": numbers(random, entries, slots - 1, index),
        "mask": random.integers(0, 2, mask_bytes).astype(np.uint8),
        "mask_indptr": numbers(random, BATCH, mask_bytes, np.int64),
        "workspace": np.empty(
            library.workspace_size(device=-1, num_heads=HEADS, max_q_len=8, max_batch=BATCH), np.uint8
        ),
        "record": record,
    }
    args = abi.VerifyArgs(ctypes.sizeof(abi.VerifyArgs))
    for name, array in arrays.items():
        setattr(args, name, array.ctypes.data)
    args.q_stride_token, args.q_stride_head = HEADS * abi.QK_DIM, abi.QK_DIM
    args.k_stride_token, args.v_stride_token, args.pool_stride_slot = abi.QK_DIM, abi.V_DIM, abi.QK_DIM
    args.out_stride_token, args.out_stride_head = HEADS * abi.V_DIM, abi.V_DIM
    args.tokens, args.slots, args.batch, args.num_heads, args.max_q_len = tokens, slots, BATCH, HEADS, 8
    args.kv_indices_len, args.mask_len = entries, mask_bytes
    args.mask_dtype, args.mask_indptr_dtype = abi.DType.U8, abi.DType.I64
    args.qo_indptr_dtype = args.kv_indptr_dtype = args.kv_indices_dtype = index_type
    args.sm_scale, args.k_scale, args.v_scale, args.device = 0.1, 1.0, 1.0, -1
    args.workspace_bytes = arrays["workspace"].nbytes
    library.check(library.verify(args), "kdtree_verify")

    compared = abi.CompareArgs(ctypes.sizeof(abi.CompareArgs))
    for name, _ in abi.CompareArgs._fields_:
        if hasattr(args, name) and name != "struct_size":
            setattr(compared, name, getattr(args, name))
    compared.stock = compared.ours = arrays["out"].ctypes.data
    for side in ("stock", "ours"):
        setattr(compared, f"{side}_stride_token", HEADS * abi.V_DIM)
        setattr(compared, f"{side}_stride_head", abi.V_DIM)
    library.check(library.compare(compared), "kdtree_compare")


def main() -> None:
    library = load(Path(sys.argv[1]), Device.CPU)
    record = np.zeros(16, np.uint64)
    random = np.random.default_rng(5)
    for _ in range(300):
        hostile_call(library, random, record)
    found = abi.LayerRecord.from_buffer_copy(record.tobytes())
    print(found.kernel_calls, found.out_of_range)


if __name__ == "__main__":
    main()
