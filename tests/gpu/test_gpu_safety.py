"""Bad arguments, bad indices, NaN and Inf: what the CUDA library refuses, counts and keeps apart."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import reference
from cases import POOLS, Case, fill_nan, make_call, with_pool
from harness import Harness
from kdtree_verify.native.abi import DType, Status
from kdtree_verify.native.call import Call
from oracle import on_gpu
from test_nonfinite import PLACES
from test_out_of_range import CASE as HOSTILE
from test_out_of_range import CHANGES

pytestmark = pytest.mark.gpu

NAN, INF = math.nan, math.inf
every_pool = pytest.mark.parametrize("pool", POOLS)

REFUSED: list[tuple[Status, dict[str, Any]]] = [
    (Status.ERR_STRUCT_SIZE, {"struct_size": 8}),
    *((Status.ERR_NULL_POINTER, {name: None}) for name in ("q", "k", "v", "pool", "out", "qo_indptr", "kv_indices")),
    *((Status.ERR_DTYPE, {name: DType.F32}) for name in ("q_dtype", "kv_dtype", "pool_dtype", "out_dtype")),
    (Status.ERR_DTYPE, {"pool_dtype": DType.U8}),
    *((Status.ERR_DTYPE, {"kv_dtype": dtype}) for dtype in (DType.F8_E4M3, DType.F8_E5M2)),
    (Status.ERR_LIMIT, {"num_heads": 129}),
    (Status.ERR_LIMIT, {"max_q_len": 257}),
    (Status.ERR_STRIDE, {"q_stride_head": 568}),
    *((Status.ERR_ALIGNMENT, {name: 580}) for name in ("q_stride_token", "q_stride_head", "k_stride_token")),
    (Status.ERR_ALIGNMENT, {"pool_stride_slot": 580}),
    *((Status.ERR_ALIGNMENT, {name: 516}) for name in ("v_stride_token", "out_stride_token", "out_stride_head")),
    (Status.ERR_WORKSPACE, {"workspace": None}),
    (Status.ERR_WORKSPACE, {"workspace_bytes": 4096}),
    (Status.ERR_DEVICE, {"device": -1}),
    (Status.ERR_DEVICE, {"device": 64}),
    (Status.ERR_VALUE, {"sm_scale": NAN}),
    (Status.ERR_VALUE, {"variant": 99}),
]


def _name(value: object) -> str:
    return value.name if isinstance(value, Status) else " ".join(f"{k}={v}" for k, v in value.items())


@pytest.mark.parametrize(("status", "broken"), REFUSED, ids=_name)
def test_refused_and_nothing_written(harness: Harness, status: Status, broken: dict[str, Any]) -> None:
    call = on_gpu(make_call(Case((9, 3), (4, 3), 2, strided=True)))
    workspace = harness.workspace.clone()
    assert harness.verify(call, **broken) == status
    torch.cuda.synchronize()
    assert (call.o_extend == 12345.0).all()
    assert torch.equal(harness.workspace, workspace)
    assert not harness.records.any()
    assert harness.verify(call) == Status.OK  # only what was broken was wrong


@pytest.mark.parametrize("stride", [580, 584, 588])
def test_rows_of_an_fp8_pool_begin_at_16_bytes(harness: Harness, stride: int) -> None:
    call = on_gpu(make_call(with_pool(Case((9, 3), (4, 3), 2, strided=True), "e4m3")))
    assert harness.verify(call, pool_stride_slot=stride) == Status.ERR_ALIGNMENT
    assert harness.verify(call) == Status.OK


@every_pool
@pytest.mark.parametrize("name", ["q", "k", "v", "pool", "out", "workspace"])
def test_rows_must_be_aligned(harness: Harness, name: str, pool: str) -> None:
    args = harness.verify_args(on_gpu(make_call(with_pool(Case((9, 3), (4, 3), 2), pool))))
    setattr(args, name, getattr(args, name) + 8)
    args.workspace_bytes += 64
    assert harness.library.verify(args) == Status.ERR_ALIGNMENT


def test_description(library) -> None:
    """What the patch declines by, and the card it says it supports."""
    description = library.description
    assert description.q_dtypes == description.out_dtypes == {DType.BF16}
    assert description.pool_dtypes == {DType.BF16, DType.F8_E4M3, DType.F8_E5M2}
    major, minor = torch.cuda.get_device_capability(0)
    assert f"sm_{major}{minor}a" in description.archs
    assert library.supports_device(0) == Status.OK
    assert library.supports_device(torch.cuda.device_count()) == Status.ERR_DEVICE


def test_one_workspace_size_for_all(library) -> None:
    """It depends on the card alone, and one byte less is refused."""
    sizes = {
        library.workspace_size(device=0, num_heads=heads, max_q_len=rows, max_batch=batch)
        for heads, rows, batch in ((1, 1, 1), (128, 256, 1024), (8, 16, 4))
    }
    assert len(sizes) == 1
    print(f"workspace: {sizes.pop() / 2**20:.1f} MiB")


@every_pool
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("max_q_len", [16, 5])
def test_counted_and_not_followed(harness: Harness, name: str, max_q_len: int, pool: str) -> None:
    change, _ = CHANGES[name]
    call = make_call(replace(HOSTILE, pool_dtype=POOLS[pool], k_scale=0.5))
    for tensor in (call.q_extend, call.k_extend, call.v_extend, call.k_buffer):
        fill_nan(tensor, 0.5)  # what the change makes legal to read
    call.kv_indices[32:] = 1
    call.kv_indices[:3] = 2
    call = call._replace(max_len_extend=max_q_len)
    change(call)
    want, named = reference.attention(call), reference.named_rows(call)
    requests = reference.requests(call)

    call = on_gpu(call)
    assert harness.verify(call) == Status.OK
    got = call.o_extend.cpu()
    torch.testing.assert_close(got[named].double(), want[named], rtol=2e-2, atol=2e-2)
    assert (got[~named] == 12345.0).all()
    assert harness.record.out_of_range == harness.mirror.out_of_range == sum(r.refused for r in requests)
    assert harness.record.kernel_rows == sum(len(r.visible) for r in requests)


@every_pool
def test_a_slot_is_counted_once_however_many_tiles_read_it(harness: Harness, pool: str) -> None:
    call = make_call(with_pool(Case((700, 40), (64, 8), 16), pool))  # 16 row tiles, some split
    call.kv_indices[torch.arange(0, 740, 37)] = 2**40
    call = on_gpu(call)
    assert harness.verify(call) == Status.OK
    assert harness.record.out_of_range == 20


@every_pool
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(("place", "column"), PLACES)
def test_one_bad_number(
    harness: Harness, place: Callable[[Call, int, float], None], column: int, value: float, pool: str
) -> None:
    """NaN and Inf go where IEEE takes them, in the rows that see them, and nowhere else."""
    call = make_call(replace(Case((30, 12), (20, 10), 3, mask="any"), pool_dtype=POOLS[pool], k_scale=0.5))
    place(call, column, value)
    want = reference.attention(call)
    call = on_gpu(call)
    assert harness.verify(call) == Status.OK
    got, finite = call.o_extend.cpu().double(), want.isfinite()
    assert finite.any()
    assert not finite.all()
    torch.testing.assert_close(got[~finite], want[~finite], equal_nan=True)
    torch.testing.assert_close(got[finite], want[finite], rtol=2e-2, atol=2e-2)


@every_pool
def test_bad_numbers_of_one_request_among_many(harness: Harness, pool: str) -> None:
    """A request full of NaN and Inf, as a padded one may be, beside sound ones of all sizes."""
    case = with_pool(Case((400, 33, 1, 90), (16, 7, 16, 40), 8), pool)
    sound = on_gpu(make_call(case))
    assert harness.verify(sound) == Status.OK
    call = on_gpu(make_call(case))
    rows = slice(23, 39)  # the third request's
    for value, tensor in ((NAN, call.q_extend), (INF, call.k_extend), (NAN, call.v_extend)):
        tensor[rows] = value
    call.k_buffer.view(torch.uint8)[call.kv_indices[433]] = 0xFF  # NaN in every dtype
    assert harness.verify(call) == Status.OK
    others = torch.tensor([row for row in range(79) if not 23 <= row < 39])
    assert call.o_extend[rows].isnan().all()
    assert torch.equal(call.o_extend[others], sound.o_extend[others])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_minus_infinity(harness: Harness, dtype: torch.dtype) -> None:
    """Scores of -inf: weights of 0 that a finite score may follow; nothing else seen is 0 / 0, not a row of zeros."""
    call = make_call(Case((30, 700), (20, 10), 3, mask="any", pool_dtype=dtype))
    column = 560
    call.q_extend[..., column] = 1.0
    call.k_buffer[..., column] = -INF
    call = on_gpu(call)
    want = reference.attention(call)
    assert harness.verify(call) == Status.OK
    got, finite = call.o_extend.cpu().double(), want.isfinite()
    assert finite.any()
    assert not finite.all()
    assert torch.equal(got.isfinite(), finite)
    torch.testing.assert_close(got[finite], want[finite], rtol=2e-2, atol=2e-2)
    call.k_extend[..., column] = -INF
    assert harness.verify(call) == Status.OK
    assert call.o_extend.isnan().all()


ROOT = Path(__file__).resolve().parents[2]


def cuda_tool(name: str) -> str:
    """Where a program of the CUDA toolkit is; skips where it is not."""
    found = shutil.which(name) or f"/usr/local/cuda/bin/{name}"
    if not Path(found).exists():
        pytest.skip(f"{name} is not installed")
    return found


def library_for_racecheck(folder: Path) -> Path:
    """The CUDA library of these sources for this card, built so that racecheck sees what orders its accesses."""
    major, minor = torch.cuda.get_device_capability()
    subprocess.run(
        [ROOT / "kernel" / "build.sh", "cuda", folder, f"{major}{minor}a"],
        env={**os.environ, "NVCC": cuda_tool("nvcc"), "NVCC_APPEND_FLAGS": "-DKDTREE_FOR_RACECHECK"},
        check=True,
    )
    return folder


TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_compute_sanitizer(tool: str, tmp_path: Path) -> None:
    sanitizer = cuda_tool("compute-sanitizer")
    program = Path(__file__).with_name("sanitize.py")
    command = [sanitizer, f"--tool={tool}", "--kernel-name=kns=kdtree_", "--error-exitcode=9"]
    environment = dict(os.environ)
    if tool == "racecheck":
        environment["KDTREE_LIBRARY_DIR"] = str(library_for_racecheck(tmp_path))
        command.append("--num-cuda-barriers=64")  # how many mbarriers it keeps track of
    done = subprocess.run(
        [*command, sys.executable, program], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "0 hazards" in done.stdout, done.stdout[-2000:]
    print(f"{tool}: {done.stdout.strip().splitlines()[-1]}")
