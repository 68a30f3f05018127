"""kdtree_gate: one call of so many goes through, the others name no row."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from cases import Case, make_call
from kdtree_verify.native import abi
from kdtree_verify.native.abi import Status
from kdtree_verify.native.call import gate_args
from kdtree_verify.native.library import Library


class Gate:
    """A call of two requests, what the gate makes of its indptrs, and the counter; both with words behind them."""

    def __init__(self, library: Library, qo: torch.dtype = torch.int32, kv: torch.dtype = torch.int32):
        self.library = library
        call = make_call(Case((5, 9), (3, 4), 1))
        self.call = call._replace(qo_indptr=call.qo_indptr.to(qo), kv_indptr=call.kv_indptr.to(kv))
        self.gated = call._replace(qo_indptr=torch.full((4,), 77, dtype=qo), kv_indptr=torch.full((4,), 77, dtype=kv))
        self.counter = ctypes.c_uint64()

    def pass_through(self, every: int, phase: int = 0, **fields: Any) -> int:
        args = gate_args(self.call, self.gated)
        args.counter, args.every, args.phase, args.device = ctypes.addressof(self.counter), every, phase, -1
        for name, value in fields.items():
            setattr(args, name, value)
        return self.library.gate(args)

    def is_open(self) -> bool:
        """Whether the last call went through; the words behind the indptrs are as they were."""
        found = [tensor.tolist() for tensor in (self.gated.qo_indptr, self.gated.kv_indptr)]
        assert all(values[3] == 77 for values in found)
        opened = [self.call.qo_indptr.tolist(), self.call.kv_indptr.tolist()]
        assert [values[:3] for values in found] in (opened, [[0, 0, 0]] * 2)
        return found[0][2] != 0


@pytest.mark.parametrize(("qo", "kv"), [(torch.int32, torch.int32), (torch.int64, torch.int32)], ids=str)
@pytest.mark.parametrize("every", [1, 2, 5])
def test_one_of_so_many(library: Library, every: int, qo: torch.dtype, kv: torch.dtype) -> None:
    for phase in (0, 1, 3, 12):
        gate = Gate(library, qo, kv)
        opened = []
        for _ in range(11):
            assert gate.pass_through(every, phase) == Status.OK
            opened.append(gate.is_open())
        assert opened == [(count + phase) % every == 0 for count in range(11)]
        assert gate.counter.value == 11


def test_no_requests(library: Library) -> None:
    gate = Gate(library)
    assert gate.pass_through(1, batch=0) == Status.OK
    assert gate.gated.qo_indptr.tolist() == [0, 77, 77, 77]


@pytest.mark.parametrize(
    ("status", "broken"),
    [
        (Status.ERR_STRUCT_SIZE, {"struct_size": 8}),
        *(
            (Status.ERR_NULL_POINTER, {name: None})
            for name in ("qo_indptr", "kv_indptr", "gated_qo_indptr", "gated_kv_indptr", "counter")
        ),
        (Status.ERR_DTYPE, {"qo_indptr_dtype": abi.DType.BF16}),
        (Status.ERR_DTYPE, {"kv_indptr_dtype": abi.DType.U8}),
        (Status.ERR_LIMIT, {"batch": -1}),
        (Status.ERR_LIMIT, {"batch": abi.MAX_BATCH + 1}),
        (Status.ERR_VALUE, {"every": 0}),
        (Status.ERR_DEVICE, {"device": 0}),
        (Status.ERR_DEVICE, {"stream": 1}),
    ],
    ids=lambda value: value.name if isinstance(value, Status) else " ".join(f"{k}={v}" for k, v in value.items()),
)
def test_refusals(library: Library, status: Status, broken: dict[str, Any]) -> None:
    gate = Gate(library)
    assert gate.pass_through(**{"every": 1, **broken}) == status
    assert (gate.counter.value, gate.gated.qo_indptr.tolist()) == (0, [77] * 4)
    assert gate.library.functions.kdtree_gate(None) == Status.ERR_NULL_POINTER
    assert gate.pass_through(1) == Status.OK
    assert gate.is_open()
