"""What only the device can see: bad values are counted by the rule of kernel/common/bounds.h, never followed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import reference
from cases import POOLS, Case, fill_nan, make_call, with_pool
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library

ROOT = Path(__file__).parents[2]
FAR = 2**40
# Query rows 2..8..12..17 of 19, prefix entries 3..23..23..32 of 41, 100 slots or so.
CASE = Case((20, 0, 9), (6, 4, 5), 3, gap=2, indptr_dtype=torch.int64)


def _set(name: str, index: int | list[int], value: int | list[int]) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        getattr(call, name)[torch.tensor(index)] = torch.tensor(value, dtype=getattr(call, name).dtype)

    return change


def _no_rows(call: Call) -> None:
    """The first request has no rows, so that nothing else of it is read."""
    call.qo_indptr[0] = 8
    call.kv_indptr[0] = -9
    call.kv_indices[4] = FAR
    call.mask_indptr[0] = -1


# A window that grows asks for more mask, too; the mask's last request has 11 bytes to spare.
CHANGES: dict[str, tuple[Callable[[Call], None], int]] = {
    "nothing": (lambda call: None, 0),
    "slots": (_set("kv_indices", [4, 10, 22, 31], [-1, 69, FAR, -FAR]), 4),
    "every slot of a request": (_set("kv_indices", list(range(23, 32)), -1), 9),
    "slots of nobody": (_set("kv_indices", [0, 40], [FAR, -1]), 0),
    "query begins below zero": (_set("qo_indptr", 0, -5), 1),
    "query ends past the end": (_set("qo_indptr", 3, 20), 2),
    "query ends far past the end": (_set("qo_indptr", 3, FAR), 2),
    "query runs backwards": (_set("qo_indptr", 3, 9), 1),
    "every query is past the end": (_set("qo_indptr", [0, 1, 2, 3], FAR), 3),
    "no rows": (_no_rows, 0),
    "prefix begins below zero": (_set("kv_indptr", 0, -1), 1),
    "prefix ends past the end": (_set("kv_indptr", 3, 42), 2),
    "prefix runs backwards": (_set("kv_indptr", 2, 1), 2),
    "prefix from the smallest to the largest number": (_set("kv_indptr", [0, 3], [-(2**63), 2**63 - 1]), 3),
    "mask below zero": (_set("mask_indptr", 1, -1), 1),
    "mask at the last byte possible": (_set("mask_indptr", 2, 172 + 11), 0),
    "mask one byte too late": (_set("mask_indptr", 2, 172 + 11 + 1), 1),
    "mask far away": (_set("mask_indptr", [0, 1, 2], [2**63 - 1, -(2**63), FAR]), 3),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("max_q_len", [16, 5])
def test_counted_and_not_followed(library: Library, name: str, max_q_len: int, pool: str) -> None:
    change, count = CHANGES[name]
    call = make_call(with_pool(CASE, pool))
    for tensor in (call.q_extend, call.k_extend, call.v_extend, call.k_buffer):
        fill_nan(tensor, 0.5)  # what the change makes legal to read
    call.kv_indices[32:] = 1
    call.kv_indices[:3] = 2
    call = call._replace(max_len_extend=max_q_len)
    change(call)
    requests = reference.requests(call)
    if max_q_len == 16:
        assert sum(request.refused for request in requests) == count  # the reference follows the rule, too

    harness = Harness(library)
    assert harness.verify(call) == abi.Status.OK
    want, named = reference.attention(call), reference.named_rows(call)
    reference.assert_rounded(call.o_extend[named], want[named])
    assert (call.o_extend[~named] == torch.tensor(12345.0).bfloat16()).all()
    assert harness.record.out_of_range == harness.mirror.out_of_range
    assert harness.record.out_of_range == sum(request.refused for request in requests)
    assert harness.record.kernel_rows == sum(len(request.visible) for request in requests)


def test_a_longer_request_is_cut(library: Library) -> None:
    """Its first rows are computed, as if there were no more of them: the mask's rows too."""
    call = make_call(Case((5,), (12,), 2, mask="chain"))._replace(max_len_extend=7)
    harness = Harness(library)
    assert harness.verify(call) == abi.Status.OK
    reference.assert_rounded(call.o_extend[:7], reference.attention(call)[:7])
    assert (call.o_extend[7:] == torch.tensor(12345.0).bfloat16()).all()
    assert (harness.record.out_of_range, harness.record.kernel_rows) == (1, 7)


def test_hostile_calls_under_sanitizers(tmp_path: Path) -> None:
    """The library compiled with ASan and UBSan, fed with arrays of random numbers for indices and lengths."""
    compiler = os.environ.get("CXX", "g++")
    runtimes = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    sources = [*(ROOT / "kernel" / "common").glob("*.cpp"), *(ROOT / "kernel" / "host").glob("*.cpp")]
    defines = ['-DKDTREE_SOURCE_HASH="sanitized"', '-DKDTREE_COMPILER="g++"']
    output = tmp_path / "libkdtree_verify_host.so"
    flags = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-pthread"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    includes = [f"-I{ROOT}/kernel", f"-I{ROOT}/kernel/include"]
    subprocess.run([compiler, *flags, *includes, *defines, *sources, "-o", output], check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(name.strip() for name in runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(ROOT / "patch" / "src"),
    }
    program = Path(__file__).with_name("hostile_calls.py")
    done = subprocess.run([sys.executable, program, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    calls, refused = map(int, done.stdout.split())
    assert calls > 200
    assert refused > calls  # the numbers were hostile
