"""Hands a call to a kernel library, on the CPU or on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from kdtree_verify.native import abi
from kdtree_verify.native.call import Call, compare_args, verify_args
from kdtree_verify.native.library import Library


class Harness:
    """One library on one device, with a workspace for any call, one record and one table of shapes.

    `verify` and `compare` take fields of the argument struct by name, to set what the call does not or to
    break what it does; they return the status.
    """

    def __init__(self, library: Library, device: torch.device = torch.device("cpu")) -> None:
        self.library = library
        self.ordinal = -1 if device.type == "cpu" else (device.index or 0)
        size = library.largest_workspace_size(self.ordinal)
        # Not initialized by anyone: garbage that would show.
        self.workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
        self.records = torch.zeros(2, ctypes.sizeof(abi.LayerRecord), dtype=torch.uint8, device=device)
        cells = abi.PREFIX_BUCKETS * abi.BATCH_BUCKETS
        self.shapes = torch.zeros(2, cells, ctypes.sizeof(abi.ShapeRecord), dtype=torch.uint8, device=device)

    def _shared_fields(self) -> dict[str, Any]:
        stream = None if self.ordinal < 0 else torch.cuda.current_stream(self.ordinal).cuda_stream
        return {
            "device": self.ordinal,
            "stream": stream,
            "workspace": self.workspace.data_ptr(),
            "workspace_bytes": self.workspace.numel(),
            "record": self.records[0].data_ptr(),
            "mirror": self.records[1].data_ptr(),
        }

    def verify_args(self, call: Call, out: torch.Tensor | None = None, /, **fields: Any) -> abi.VerifyArgs:
        args = verify_args(call, call.o_extend if out is None else out)
        for name, value in {**self._shared_fields(), **fields}.items():
            setattr(args, name, value)
        return args

    def compare_args(self, call: Call, ours: torch.Tensor, /, **fields: Any) -> abi.CompareArgs:
        args = compare_args(call, ours)
        shapes = {"shapes": self.shapes[0].data_ptr(), "shapes_mirror": self.shapes[1].data_ptr()}
        for name, value in {**self._shared_fields(), **shapes, "rel_l2_bound": 1.0, **fields}.items():
            setattr(args, name, value)
        return args

    def verify(self, call: Call, out: torch.Tensor | None = None, /, **fields: Any) -> int:
        return self.library.verify(self.verify_args(call, out, **fields))

    def compare(self, call: Call, ours: torch.Tensor, /, **fields: Any) -> int:
        return self.library.compare(self.compare_args(call, ours, **fields))

    @property
    def record(self) -> abi.LayerRecord:
        return self._record(0)

    @property
    def mirror(self) -> abi.LayerRecord:
        return self._record(1)

    def cells(self, index: int = 0) -> dict[tuple[int, int], abi.ShapeRecord]:
        """The cells of the table (1: of its mirror) that hold anything, by (prefix, batch) bucket."""
        found = {}
        for cell, words in enumerate(self.shapes[index].cpu()):
            if words.any():
                record = abi.ShapeRecord.from_buffer_copy(words.numpy().tobytes())
                found[divmod(cell, abi.BATCH_BUCKETS)] = record
        return found

    def _record(self, index: int) -> abi.LayerRecord:
        return abi.LayerRecord.from_buffer_copy(self.records[index].cpu().numpy().tobytes())


def fields(record: abi.LayerRecord | abi.ShapeRecord) -> dict[str, int | float]:
    """A record's fields by name, the reserved ones left out."""
    return {name: getattr(record, name) for name, _ in record._fields_ if name != "reserved"}
