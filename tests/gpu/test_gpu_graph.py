"""One captured graph serves every length, mask and slot; what is counted under replay reaches the host."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reference
from cases import POOLS, Case, MaskKind, make_call, with_pool
from harness import Harness, fields
from kdtree_verify import abi, gpu
from kdtree_verify.call import Call
from oracle import DEVICE, Errors, on_gpu

pytestmark = pytest.mark.gpu
every_pool = pytest.mark.parametrize("pool", POOLS)

BATCH, T, HEADS, CONTEXT, SLOTS = 6, 8, 8, 3000, 9000


def case_of(pool: str, prefixes: tuple[int, ...], mask: MaskKind = "tree") -> Case:
    return with_pool(Case(prefixes, (T,) * len(prefixes), HEADS, mask=mask), pool)


def captured_buffers(pool: str) -> Call:
    """Buffers as SGLang captures them: as long as the longest, prefix 1 on slot 0 for every request."""
    tokens, case = BATCH * T, case_of(pool, (1,))
    rows = torch.full((SLOTS, 1, abi.QK_DIM), float("nan"), device=DEVICE).to(case.pool_dtype)
    out = torch.full((tokens, HEADS, abi.V_DIM), 12345.0, dtype=torch.bfloat16, device=DEVICE)
    return Call(
        q_extend=torch.zeros(tokens, HEADS, abi.QK_DIM, dtype=torch.bfloat16, device=DEVICE),
        k_extend=torch.zeros(tokens, 1, abi.QK_DIM, dtype=torch.bfloat16, device=DEVICE),
        v_extend=torch.zeros(tokens, 1, abi.V_DIM, dtype=torch.bfloat16, device=DEVICE),
        o_extend=out,
        k_buffer=rows,
        v_buffer=rows[..., : abi.V_DIM],
        qo_indptr=torch.arange(0, tokens + 1, T, dtype=torch.int64, device=DEVICE),
        kv_indptr=torch.arange(BATCH + 1, dtype=torch.int32, device=DEVICE),
        kv_indices=torch.zeros(BATCH * CONTEXT, dtype=torch.int64, device=DEVICE),
        custom_mask=torch.zeros(BATCH * T * (CONTEXT + T), dtype=torch.uint8, device=DEVICE),
        is_causal=True,
        mask_indptr=torch.zeros(BATCH + 1, dtype=torch.int64, device=DEVICE),
        max_len_extend=T,
        k_scale=case.k_scale,
        v_scale=case.v_scale,
        sm_scale=case.scale / abi.QK_DIM**0.5,
    )


def refill(buffers: Call, case: Case, seed: int, padded: int = 1) -> None:
    """New contents for the captured buffers; requests beyond the case's are padding: SGLang's, of one prefix entry on
    slot 0, or as long as `padded` says, and full of NaN."""
    real = len(case.prefixes)
    call = on_gpu(make_call(case, seed))
    entries, padding = int(call.kv_indptr[-1]), torch.arange(1, BATCH - real + 1, device=DEVICE)
    pool = buffers.k_buffer.view(torch.uint8)
    pool.fill_(0xFF)  # NaN in every dtype
    # Shifted by one: slot 0 is the sink.
    pool[1 : 1 + len(call.k_buffer)] = call.k_buffer.view(torch.uint8)
    buffers.kv_indices.fill_(2**40)
    buffers.kv_indices[:entries] = call.kv_indices[:entries] + 1
    buffers.kv_indices[entries : entries + padded * len(padding)] = 0
    buffers.kv_indptr[: real + 1] = call.kv_indptr
    buffers.kv_indptr[real + 1 :] = entries + padding * padded
    buffers.custom_mask.fill_(1)
    buffers.custom_mask[: len(call.custom_mask)] = call.custom_mask
    buffers.mask_indptr[: real + 1] = call.mask_indptr
    buffers.mask_indptr[real + 1 :] = call.mask_indptr[-1] + padding * T * (T + padded)
    for name in ("q_extend", "k_extend", "v_extend"):
        getattr(buffers, name).fill_(float("nan"))
        getattr(buffers, name)[: real * T] = getattr(call, name)
    buffers.o_extend.fill_(12345.0)


def real_part(buffers: Call, real: int) -> Call:
    """The call without its padding."""
    rows = real * T
    short = {name: getattr(buffers, name)[:rows] for name in ("q_extend", "k_extend", "v_extend", "o_extend")}
    return buffers._replace(**short, qo_indptr=buffers.qo_indptr[: real + 1], kv_indptr=buffers.kv_indptr[: real + 1])


REPLAYS = [(1,), (2000,), (0, 31, 32, 33, 64, 1), (700, 5), (1, 3000, 1, 2999), (500,) * 6, (7,), (0, 0, 0)]


@every_pool
def test_one_graph_for_every_length(library, pool: str) -> None:
    harness = Harness(library, DEVICE)
    buffers = captured_buffers(pool)
    size = ctypes.sizeof(abi.LayerRecord)
    host, mapped = gpu.mapped_host_memory(0, 2 * size)
    mirror = abi.LayerRecord.from_address(host)
    counter, counted = torch.zeros(1, dtype=torch.int64, device=DEVICE), ctypes.c_uint64.from_address(host + size)
    stock = torch.zeros_like(buffers.o_extend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert harness.verify(buffers, mirror=mapped) == abi.Status.OK
        compared = buffers._replace(o_extend=stock)
        assert harness.compare(compared, buffers.o_extend, rel_l2_bound=0.01, mirror=mapped) == abi.Status.OK
        stream = torch.cuda.current_stream().cuda_stream
        assert library.count(counter.data_ptr(), mapped + size, 0, stream) == abi.Status.OK
    assert (mirror.kernel_calls, counted.value) == (0, 0)  # a capture runs nothing

    rows = 0
    for i, prefixes in enumerate(REPLAYS):
        padded = i % 2
        refill(buffers, case_of(pool, prefixes, "any" if i % 3 == 2 else "tree"), i, padded)
        eager = buffers._replace(o_extend=stock)
        stock.fill_(12345.0)
        assert library.verify(harness.verify_args(eager, stock, record=None, mirror=None)) == abi.Status.OK
        graph.replay()
        torch.cuda.synchronize()
        assert (mirror.kernel_calls, mirror.compare_calls, counted.value) == (i + 1, i + 1, i + 1)
        real = len(prefixes)
        rows += (real if padded == 1 else BATCH) * T  # SGLang's padding is not compared
        part = real_part(buffers, real)
        named = reference.named_rows(part)
        assert named.all()
        Errors().add(part, part.o_extend)
        assert torch.equal(buffers.o_extend[: real * T], stock[: real * T])  # replayed as eager
    assert fields(mirror) == fields(harness.record)
    assert (mirror.out_of_range, mirror.nonfinite, mirror.exceeded_calls, mirror.last_rel_l2) == (0, 0, 0, 0.0)
    assert mirror.kernel_rows == len(REPLAYS) * BATCH * T
    assert mirror.compare_rows == rows

    # A difference in one element of the real rows, and NaN in a padded one: only the first shows.
    refill(buffers, case_of(pool, (40, 50)), seed=99)
    assert library.verify(harness.verify_args(eager, stock, record=None, mirror=None)) == abi.Status.OK
    stock[3, 2, 1] += 8.0
    graph.replay()
    torch.cuda.synchronize()
    assert (mirror.nonfinite, mirror.exceeded_calls) == (0, 1)
    assert mirror.last_max_abs == pytest.approx(8.0, rel=0.01)


@every_pool
def test_two_streams_at_a_time(library, pool: str) -> None:
    """Each with a workspace of its own, one replaying a graph: what each gives alone, bit for bit."""
    cases = Case((9000, 40), (16, 9), 16), Case((300,) * 12, (64,) * 12, 8)
    calls = [on_gpu(make_call(with_pool(case, pool), seed)) for seed, case in enumerate(cases)]
    harnesses, streams = [Harness(library, DEVICE) for _ in calls], [torch.cuda.Stream() for _ in calls]
    alone = []
    for harness, call in zip(harnesses, calls, strict=True):
        assert harness.verify(call) == abi.Status.OK
        torch.cuda.synchronize()
        Errors().add(call, call.o_extend)
        alone.append(call.o_extend.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert harnesses[0].verify(calls[0]) == abi.Status.OK

    for _ in range(20):
        for call in calls:
            call.o_extend.fill_(12345.0)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            for _ in range(3):
                graph.replay()
        with torch.cuda.stream(streams[1]):
            for _ in range(3):
                assert harnesses[1].verify(calls[1]) == abi.Status.OK
        torch.cuda.synchronize()
        for call, out in zip(calls, alone, strict=True):
            assert torch.equal(call.o_extend.view(torch.int16), out.view(torch.int16))
    assert [harness.record.kernel_calls for harness in harnesses] == [61, 61]


FIRST_CALL = """
import sys
sys.path[:0] = {path!r}
import torch
from pathlib import Path
from cases import Case, make_call
from harness import Harness
from kdtree_verify.config import Device
from kdtree_verify.library import load
from oracle import DEVICE, Errors, on_gpu
harness = Harness(load(Path({library!r}), Device.CUDA), DEVICE)
call = on_gpu(make_call(Case((300, 20), (8, 8), 8)))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    assert harness.verify(call) == 0
    assert harness.compare(call, call.o_extend) == 0
assert (call.o_extend == 12345.0).all()
graph.replay()
Errors().add(call, call.o_extend)
assert (harness.record.kernel_calls, harness.record.compare_calls) == (1, 1)
"""


def test_the_first_call_of_a_process_may_be_captured() -> None:
    """Nothing is set up at the first call that a capture would forbid."""
    root = Path(__file__).parents[2]
    path = [str(root / "tests" / "gpu"), str(root / "tests" / "kernel"), str(root / "patch" / "src")]
    program = FIRST_CALL.format(path=path, library=os.environ["KDTREE_LIBRARY_DIR"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
