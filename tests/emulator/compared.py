"""kdtree_compare, its box and kdtree_gate in the emulator, beside the host library: both get each call."""

from __future__ import annotations

import ctypes
import math
from random import Random

import numpy as np
import torch

from cases import POOLS, Case, make_call, with_pool
from compare_calls import outputs
from emulated import Emulator
from fuzz import fuzz_call
from fuzz_shape import Limits
from guarded import guarded, guarded_bytes
from harness import Harness, fields
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call, gate_args
from kdtree_verify.native.library import Library
from kdtree_verify.rank.box import Box
from kdtree_verify.rank.records import Model
from sanitize import hostile_call

LIMITS = Limits(pairs=2**12, rows=2**6, keys=200, batch=40)
BOUND = 0.05
# Sums are taken in another order.
_INEXACT = ("sum_sq_diff", "sum_sq_stock", "worst_rel_l2", "last_rel_l2", "sum_rel_l2", "rel_l2")


class Side:
    """One of the two: records, table and box of its own."""

    def __init__(self, library: Library, box_bytes: int) -> None:
        self.harness, self.box = Harness(library), Box(torch.device("cpu"), box_bytes)

    def args(self, call: Call, ours: torch.Tensor, stamps: int, boxed: bool) -> abi.CompareArgs:
        args = self.harness.compare_args(call, ours, rel_l2_bound=BOUND, stamps=stamps)
        if boxed:
            args.box = ctypes.pointer(self.box.args(call, ours, Model.TARGET, 7))
        return args


class Comparison:
    """Runs calls on both sides; what they leave must be the same."""

    def __init__(self, emulator: Emulator, library: Library) -> None:
        self.emulator, self.library = emulator, library
        self.calls = self.kept = 0

    def check(self, call: Call, ours: torch.Tensor, ctas: int, seed: int, box_bytes: int) -> None:
        """Three times: the box is filled at most once until it is taken, then again."""
        call = guarded(call)
        emulated, host = (Side(self.library, box_bytes) for _ in range(2))
        words = (ctypes.c_uint64 * 3)(*(Random(seed).randrange(50) for _ in range(3)))
        stamps = ctypes.addressof(words)
        for turn in range(3):
            emulated.harness.workspace = guarded_bytes(ctas * 64 + 32, 16)
            status = self.emulator.compare(emulated.args(call, ours, stamps, turn > 0), ctas, seed + turn)
            assert status == abi.Status.OK, f"status {status}"
            assert self.library.compare(host.args(call, ours, stamps, turn > 0)) == abi.Status.OK
            self._assert_same(emulated, host)
            if turn != 1 or seed % 2:
                self._take(emulated, host)
        self.calls += 3

    def check_gate(self, call: Call, random: Random) -> None:
        counters = (ctypes.c_uint64 * 2)()
        every, phase = random.randint(1, 4), random.randrange(9)
        for seed in range(5):
            found = []
            for side in range(2):
                gated = call._replace(
                    qo_indptr=guarded_bytes(call.qo_indptr.nbytes, 8).view(call.qo_indptr.dtype),
                    kv_indptr=guarded_bytes(call.kv_indptr.nbytes, 8).view(call.kv_indptr.dtype),
                )
                args = gate_args(call, gated)
                args.counter, args.every, args.phase = ctypes.addressof(counters) + 8 * side, every, phase
                args.device = -1
                status = self.emulator.gate(args, seed) if side == 0 else self.library.gate(args)
                assert status == abi.Status.OK, f"status {status}"
                found.append((gated.qo_indptr.tolist(), gated.kv_indptr.tolist()))
            assert found[0] == found[1], f"the gate gives {found[0]}, the host library's {found[1]}"
        assert list(counters) == [5, 5]

    def _assert_same(self, emulated: Side, host: Side) -> None:
        _assert_close("record", fields(emulated.harness.record), fields(host.harness.record))
        assert fields(emulated.harness.mirror) == fields(emulated.harness.record), "the mirror is not the record"
        got, want = emulated.harness.cells(), host.harness.cells()
        assert got.keys() == want.keys(), f"cells {[*got]}, the host library's {[*want]}"
        for place, cell in want.items():
            _assert_close(f"cell {place}", fields(got[place]), fields(cell))
            assert fields(emulated.harness.cells(1)[place]) == fields(got[place]), "the table's mirror is another"

    def _take(self, emulated: Side, host: Side) -> None:
        counts = [(side.box.too_large, side.box.found_full) for side in (emulated, host)]
        assert counts[0] == counts[1], f"too large, found full: {counts[0]}, the host library's {counts[1]}"
        got, want = emulated.box.take(), host.box.take()
        assert (got is None) == (want is None), f"the box holds {got}, the host library's {want}"
        if got is None or want is None:
            return
        self.kept += 1
        assert got.tensors.keys() == want.tensors.keys()
        for name, tensor in want.tensors.items():
            same = torch.equal(got.tensors[name].view(torch.uint8), tensor.view(torch.uint8))
            assert same, f"the box's {name} is not the host library's"
        numbers = [
            {name: value for name, value in vars(side).items() if name not in side.tensors} for side in (got, want)
        ]
        _assert_close("box", *numbers)


def _assert_close(what: str, got: dict, want: dict) -> None:
    for name, value in want.items():
        close = name in _INEXACT and math.isclose(got[name], value, rel_tol=1e-12)
        assert close or got[name] == value, f"{what}: {name} is {got[name]}, the host library's {value}"


def run_comparisons(comparison: Comparison, count: int) -> None:
    hostile = np.random.default_rng(7)
    for seed in range(count):
        random = Random(seed)
        kind = ("random", "padded", "hostile")[seed % 3]
        if kind == "random":
            call, _ = fuzz_call(seed, LIMITS, torch.device("cpu"))
        elif kind == "hostile":
            call = hostile_call(hostile)
        else:
            call = make_call(with_pool(Case((9, 1, 30, 1), (3, 3, 5, 3), 2), random.choice(list(POOLS))), seed)
            call.kv_indices[int(call.kv_indptr[1])] = call.kv_indices[int(call.kv_indptr[3])] = 0
        ctas = random.choice((1, 2, 5))
        print(f"compare {seed}: {kind}, {ctas} CTAs", flush=True)
        call, ours = outputs(call, random)
        comparison.check(call, ours, ctas, seed, random.choice((1 << 12, 1 << 17, 1 << 21, 1 << 21)))
        comparison.check_gate(call, random)
    first = comparison.emulator.stamp()
    assert comparison.emulator.stamp() > first
