"""What validate and sampling measure on the device: shapes, times, the box and the gate, eagerly and under replay."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from cases import POOLS, Case, make_call, with_pool
from compare_calls import outputs
from fuzz import fuzz_call
from fuzz_shape import Limits
from graph_buffers import BATCH, T, captured_buffers, case_of, refill
from harness import Harness, fields
from kdtree_verify.config import Device
from kdtree_verify.native import abi, gpu
from kdtree_verify.native.abi import Status
from kdtree_verify.native.call import Call, gate_args
from kdtree_verify.native.library import load
from kdtree_verify.rank.box import Box
from kdtree_verify.rank.records import Model
from oracle import DEVICE, on_gpu

pytestmark = pytest.mark.gpu

HOST = torch.device("cpu")
LIMITS = Limits(pairs=2**16, rows=2**9, keys=2000, batch=64)
INEXACT = ("sum_sq_diff", "sum_sq_stock", "worst_rel_l2", "last_rel_l2", "sum_rel_l2")
BOUND = 0.05
LONGEST_NS = 50e6  # of any such call, on any card


def close(got: dict[str, Any], want: dict[str, Any]) -> bool:
    return all(
        got[name] == (pytest.approx(value, rel=1e-12) if name in INEXACT else value) for name, value in want.items()
    )


def host_library() -> Path:
    return Path(os.environ["KDTREE_LIBRARY_DIR"])


@pytest.mark.parametrize("seed", range(12))
def test_the_same_as_the_host_library(library, seed: int) -> None:
    """Records, cells and what the box keeps, byte for byte."""
    random = Random(seed)
    if seed % 3:
        call, _ = fuzz_call(seed, LIMITS, HOST)
    else:
        call = make_call(with_pool(Case((900, 1, 2100, 1), (3, 3, 64, 3), 8), random.choice(list(POOLS))), seed)
        call.kv_indices[int(call.kv_indptr[1])] = call.kv_indices[int(call.kv_indptr[3])] = 0
    call, ours = outputs(call, random)
    card, host = Harness(library, DEVICE), Harness(load(host_library(), Device.CPU))
    boxes = Box(DEVICE, 1 << 24), Box(HOST, 1 << 24)
    on_card, ours_on_card = on_gpu(call), ours.to(DEVICE)
    for _ in range(2):
        args = ctypes.pointer(boxes[0].args(on_card, ours_on_card, Model.TARGET, 5))
        assert card.compare(on_card, ours_on_card, rel_l2_bound=BOUND, box=args) == Status.OK
        args = ctypes.pointer(boxes[1].args(call, ours, Model.TARGET, 5))
        assert host.compare(call, ours, rel_l2_bound=BOUND, box=args) == Status.OK
    torch.cuda.synchronize()
    assert close(fields(card.record), fields(host.record))
    assert card.cells().keys() == host.cells().keys()
    assert all(close(fields(cell), fields(host.cells()[place])) for place, cell in card.cells().items())
    assert [box.found_full for box in boxes] == [host.record.exceeded_calls // 2] * 2
    got, want = (box.take() for box in boxes)
    assert (got is None) == (want is None) == (host.record.exceeded_calls == 0)
    if got is not None and want is not None:
        for name, tensor in want.tensors.items():
            assert torch.equal(got.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name
        assert (got.request, got.batch, got.layer) == (want.request, want.batch, 5)


class Captured:
    """One graph: stamps around verify, in stock's place and as ours, and compare with a table and a box; or, with
    `every`, stock's part behind a gate."""

    def __init__(self, library, pool: str, every: int = 0) -> None:
        self.harness, self.box, self.pool = Harness(library, DEVICE), Box(DEVICE), pool
        self.buffers = captured_buffers(pool)
        self.stock, self.factor = torch.zeros_like(self.buffers.o_extend), torch.ones(BATCH * T, 1, 1, device=DEVICE)
        cells = abi.PREFIX_BUCKETS * abi.BATCH_BUCKETS
        host, mapped = gpu.mapped_host_memory(0, cells * ctypes.sizeof(abi.ShapeRecord))
        self.cells = (abi.ShapeRecord * cells).from_address(host)
        self.stamps = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        self.counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.gated = self.buffers._replace(
            qo_indptr=torch.full_like(self.buffers.qo_indptr, 7),
            kv_indptr=torch.full_like(self.buffers.kv_indptr, 7),
        )
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            compared = self._capture_gated(every) if every else self._capture()
            box = ctypes.pointer(self.box.args(compared, self.buffers.o_extend, Model.DRAFT, 2))
            stamps = None if every else self.stamps.data_ptr()
            status = self.harness.compare(
                compared, self.buffers.o_extend, rel_l2_bound=0.02, shapes_mirror=mapped, stamps=stamps, box=box
            )
            assert status == Status.OK

    def _capture(self) -> Call:
        stream, library = torch.cuda.current_stream().cuda_stream, self.harness.library
        first = self.stamps.data_ptr()
        assert library.stamp(first, 0, stream) == Status.OK
        assert self.harness.verify(self.buffers, self.stock, record=None, mirror=None) == Status.OK
        self.stock.mul_(self.factor)
        assert library.stamp(first + 8, 0, stream) == Status.OK
        assert self.harness.verify(self.buffers) == Status.OK
        assert library.stamp(first + 16, 0, stream) == Status.OK
        return self.buffers._replace(o_extend=self.stock)

    def _capture_gated(self, every: int) -> Call:
        assert self.harness.verify(self.buffers) == Status.OK
        args = gate_args(self.buffers, self.gated)
        args.counter, args.every, args.phase = self.counter.data_ptr(), every, 1
        args.device, args.stream = 0, torch.cuda.current_stream().cuda_stream
        assert self.harness.library.gate(args) == Status.OK
        assert self.harness.verify(self.gated, self.stock, record=None, mirror=None) == Status.OK
        self.stock.mul_(self.factor)
        return self.gated._replace(o_extend=self.stock)

    def replay(self, prefixes: tuple[int, ...], seed: int) -> None:
        refill(self.buffers, case_of(self.pool, prefixes), seed)
        self.graph.replay()
        torch.cuda.synchronize()

    def found(self) -> dict[tuple[int, int], abi.ShapeRecord]:
        return {divmod(i, abi.BATCH_BUCKETS): cell for i, cell in enumerate(self.cells) if cell.calls}


@pytest.mark.parametrize("pool", POOLS)
def test_shapes_and_times_under_replay(library, pool: str) -> None:
    captured = Captured(library, pool)
    for seed, prefixes in enumerate([(40,), (2900, 2900, 3000), (1, 2500), (1023, 5), (1024, 5, 7, 9)]):
        captured.replay(prefixes, seed)
    found = captured.found()
    # Padded requests are none: by the longest prefix, and by how many are real.
    assert {place: cell.calls for place, cell in found.items()} == {(0, 0): 1, (2, 1): 2, (0, 1): 1, (1, 2): 1}
    for cell in found.values():
        assert cell.timed_calls == cell.calls
        for nanoseconds in (cell.stock_ns, cell.kernel_ns):
            assert 0 < nanoseconds < LONGEST_NS * cell.calls
        assert (cell.exceeded_calls, cell.nonfinite, cell.worst_rel_l2) == (0, 0, 0.0)
    assert captured.box.take() is None


@pytest.mark.parametrize("pool", POOLS)
def test_the_box_keeps_a_replay_s_inputs(library, pool: str) -> None:
    captured = Captured(library, pool)
    captured.replay((40, 50), 0)
    second = slice(T, 2 * T)  # rows of the second request
    captured.factor[second] = 1.5
    captured.replay((700, 33, 2000), 1)
    kept = {name: getattr(captured.buffers, name)[second].clone() for name in ("q_extend", "k_extend", "v_extend")}
    kept = {name: tensor.cpu() for name, tensor in kept.items()}
    slots = captured.buffers.kv_indices[700:733]
    rows = captured.buffers.k_buffer.view(torch.uint8)[slots, 0].cpu()
    ours, stock = (tensor[second].clone().cpu() for tensor in (captured.buffers.o_extend, captured.stock))
    captured.replay((9, 9, 9, 9), 2)  # other inputs, which are off too: the box is full
    assert captured.box.found_full == 1

    found = captured.box.take()
    assert found is not None
    assert (found.model, found.layer, found.request, found.batch) == (Model.DRAFT, 2, 1, BATCH)
    assert torch.equal(found.q, kept["q_extend"])
    assert torch.equal(found.k, kept["k_extend"][:, 0])
    assert torch.equal(found.v, kept["v_extend"][:, 0])
    assert torch.equal(found.prefix.view(torch.uint8).view(rows.shape), rows)
    assert torch.equal(found.ours, ours)
    assert torch.equal(found.stock, stock)
    assert found.rel_l2 > found.bound == 0.02
    assert captured.box.take() is None
    captured.replay((9, 9, 9, 9), 3)
    assert captured.box.take().prefix_length == 9


def test_a_box_of_a_page_counts_what_does_not_fit(library) -> None:
    call = on_gpu(make_call(Case((40,), (8,), 4)))
    call.o_extend.fill_(1.0)
    harness, box = Harness(library, DEVICE), Box(DEVICE, 4096)
    ours = torch.full_like(call.o_extend, 2.0)
    args = ctypes.pointer(box.args(call, ours, Model.TARGET, 0))
    assert harness.compare(call, ours, rel_l2_bound=0.02, box=args) == Status.OK
    torch.cuda.synchronize()
    assert (box.take(), box.too_large) == (None, 1)


@pytest.mark.parametrize("every", [1, 3])
def test_a_gate_opens_at_one_replay_of_so_many(library, every: int) -> None:
    captured = Captured(library, "bf16", every)
    opened = []
    for seed in range(7):
        captured.stock.fill_(77.0)
        captured.gated.qo_indptr.fill_(-1)
        captured.replay((40, 7), seed)
        opened.append(bool(captured.gated.qo_indptr.any()))
        assert opened[-1] == (not torch.all(captured.stock == 77.0))  # else nothing was computed in stock's place
        expected = captured.buffers.qo_indptr if opened[-1] else torch.zeros_like(captured.buffers.qo_indptr)
        assert torch.equal(captured.gated.qo_indptr, expected)
    assert opened == [(seed + 1) % every == 0 for seed in range(7)]
    record = captured.harness.record
    assert (record.kernel_calls, record.compare_calls) == (7, sum(opened))
    assert record.exceeded_calls == 0
    assert captured.box.take() is None

    captured.factor.fill_(2.0)
    for seed in range(every):
        captured.replay((40, 7), seed)
    assert captured.harness.record.exceeded_calls == 1
    assert captured.box.take() is not None


def test_a_stamp_is_the_device_s_time(library) -> None:
    slots = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    stream = torch.cuda.current_stream().cuda_stream
    assert library.stamp(slots.data_ptr(), 0, stream) == Status.OK
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    torch.cuda._sleep(20_000_000)
    ended.record()
    assert library.stamp(slots.data_ptr() + 8, 0, stream) == Status.OK
    torch.cuda.synchronize()
    first, second = slots.tolist()
    assert (second - first) / 1e6 == pytest.approx(began.elapsed_time(ended), rel=0.05)
