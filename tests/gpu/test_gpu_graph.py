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
from cases import POOLS, Case, make_call, with_pool
from graph_buffers import BATCH, T, captured_buffers, case_of, real_part, refill
from harness import Harness, fields
from kdtree_verify.native import abi, gpu
from oracle import DEVICE, Errors, on_gpu

pytestmark = pytest.mark.gpu
every_pool = pytest.mark.parametrize("pool", POOLS)

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
from kdtree_verify.native.library import load
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
