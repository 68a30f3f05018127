"""Proves what validate's report and the sampling of `on` stand on: the record and its mirror, kdtree_compare with its
table of shapes, kdtree_count and kdtree_gate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace

import torch

from ..native import abi
from ..native.call import Call, compare_args, gate_args
from ..native.library import Library
from . import golden
from .report import CaseResult, Mode
from .shapes import Layout, Metadata

_WORDS = ctypes.sizeof(abi.LayerRecord) // 8
_CELL_WORDS = ctypes.sizeof(abi.ShapeRecord) // 8
_CELLS = abi.PREFIX_BUCKETS * abi.BATCH_BUCKETS
_OUT_OF_RANGE = abi.LayerRecord.out_of_range.offset // 8
_HEADS = 16  # at most so many are compared: more prove nothing new
_UNWRITTEN = 77
_RELATIVE = 1e-9  # float64 sums in any order
_REL_L2_BOUND = 1e-3  # between the two compare calls': 0 and about 1


class Counters:
    """The record that the verify calls share, and for each mode one record of compare, one table, one count and a gate.

    `layout` must be the shape with graph padding in it: padded requests are not to be compared.
    """

    def __init__(self, library: Library, device: torch.device, ordinal: int, workspace: torch.Tensor, layout: Layout):
        self._library, self._device, self._ordinal = library, device, ordinal
        self._workspace, self._layout = workspace, layout
        self.record, self.mirror = self._pair()
        self._calls = self._rows = 0
        self._compared = {mode: self._pair() for mode in ("eager", "graph")}
        self._tables = {mode: self._pair(_CELLS * _CELL_WORDS) for mode in ("eager", "graph")}
        self._counts = {mode: self._pair() for mode in ("eager", "graph")}
        self._gates = {mode: _Gate(metadata, device) for mode, metadata in self._metadata().items()}
        self._problems: dict[Mode, str | None] = {}
        self._stock, self._ours = self._outputs()

    def _pair(self, words: int = _WORDS) -> tuple[torch.Tensor, torch.Tensor]:
        # Pinned host memory is mapped into the device, at the same address.
        record = torch.zeros(words, dtype=torch.int64, device=self._device)
        return record, torch.zeros(words, dtype=torch.int64, pin_memory=record.is_cuda)

    def _metadata(self) -> dict[Mode, Metadata]:
        return {"eager": self._layout.eager, "graph": self._layout.graph}

    def _outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two outputs [tokens, heads, 512] that differ everywhere, with NaN where only one may count."""
        tokens, heads = self._layout.out.shape[0], min(self._layout.out.shape[1], _HEADS)
        requests = list(golden.REQUESTS.values())
        stock, ours = (
            golden.query(request, tokens, heads, self._device)[..., : abi.V_DIM].contiguous()
            for request in requests[:2]
        )
        first = int(self._layout.compared[0])
        ours[first, 0, 3] = torch.nan  # ours alone: counted
        stock[first, 0, 4] = ours[first, 0, 4] = torch.nan  # stock too: not counted
        last = int(self._layout.compared[-1])
        ours[last + 1 :] = torch.nan  # padded requests and rows that no request names: not compared
        return stock, ours

    def out_of_range(self) -> torch.Tensor:
        """int64 [1] on the device: reads refused by verify calls so far."""
        return self.record[_OUT_OF_RANGE : _OUT_OF_RANGE + 1]

    def expect_verify(self, rows: int) -> None:
        """Notes that a call with so many named rows was launched, or captured for one replay."""
        self._calls, self._rows = self._calls + 1, self._rows + rows

    def launch(self, mode: Mode, metadata: Metadata) -> None:
        """Stock against itself, stock against ours, one count, and a gate that opens at the second call."""
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else None
        (record, mirror), (table, table_mirror) = self._compared[mode], self._tables[mode]
        statuses = []
        for ours in (self._stock, self._ours):
            args = compare_args(self._call(metadata), ours)
            args.device, args.stream = self._ordinal, stream
            args.workspace, args.workspace_bytes = self._workspace.data_ptr() or None, self._workspace.numel()
            args.record, args.mirror = record.data_ptr(), mirror.data_ptr()
            args.shapes, args.shapes_mirror = table.data_ptr(), table_mirror.data_ptr()
            args.rel_l2_bound = _REL_L2_BOUND
            statuses.append(self._library.compare(args))
        count, count_mirror = self._counts[mode]
        statuses.append(self._library.count(count.data_ptr(), count_mirror.data_ptr(), self._ordinal, stream))
        for gated in self._gates[mode].gated:
            gate = gate_args(self._call(metadata), self._call(gated))
            gate.device, gate.stream = self._ordinal, stream
            gate.counter, gate.every, gate.phase = self._gates[mode].counter.data_ptr(), 2, 1
            statuses.append(self._library.gate(gate))
        bad = next((status for status in statuses if status != abi.Status.OK), None)
        self._problems[mode] = None if bad is None else f"status {bad}, {self._library.status_text(bad)}"

    def _call(self, metadata: Metadata) -> Call:
        layout = self._layout
        return Call(
            q_extend=layout.q,
            k_extend=layout.k,
            v_extend=layout.v,
            o_extend=self._stock,
            k_buffer=layout.pool,
            v_buffer=layout.pool,
            qo_indptr=metadata.qo_indptr,
            kv_indptr=metadata.kv_indptr,
            kv_indices=metadata.kv_indices,
            custom_mask=None,
            is_causal=True,
            mask_indptr=None,
            max_len_extend=layout.draft_tokens,
            k_scale=1.0,
            v_scale=1.0,
        )

    def verdicts(self) -> list[CaseResult]:
        """After the device has finished: one case for the record, and one of compare for each mode."""
        launched = {"kernel_calls": self._calls, "kernel_rows": self._rows, "out_of_range": 0}
        last_mode: Mode = "graph" if "graph" in self._problems else "eager"
        cases = [_case("record", last_mode, _difference(self.record, self.mirror, launched))]
        expected = self._expected_comparison()
        for mode, refused in self._problems.items():
            problem = f"the launch was refused: {refused}" if refused else None
            problem = problem or _difference(*self._compared[mode], expected)
            problem = problem or self._table_problem(mode, expected) or self._gates[mode].problem()
            counted = [int(count[0]) for count in self._counts[mode]]
            if problem is None and counted != [1, 1]:
                problem = f"kdtree_count: expected 1 and 1 in the mirror, got {counted[0]} and {counted[1]}"
            cases.append(_case("compare", mode, problem))
        return cases

    def _table_problem(self, mode: Mode, expected: Mapping[str, float]) -> str | None:
        """What the table and its mirror hold beside one cell's calls: those of the shape, graph padding left out."""
        members = [member for member in self._layout.shape.members if member.request]
        cell = (len(members).bit_length() - 1) + abi.BATCH_BUCKETS * (
            max(m.prefix for m in members) // 1024
        ).bit_length()
        wanted = {name: expected[name] for name in ("exceeded_calls", "nonfinite", "worst_rel_l2")}
        wanted |= {"calls": 2, "sum_rel_l2": expected["worst_rel_l2"], "timed_calls": 0}
        for place, words in zip(("table", "table's mirror"), self._tables[mode], strict=True):
            cells = words.view(_CELLS, _CELL_WORDS).cpu()
            if (filled := cells.any(1).nonzero().flatten().tolist()) != [cell]:
                return f"cells in the {place}: expected {[cell]}, got {filled}"
            found = abi.ShapeRecord.from_buffer_copy(cells[cell].numpy().tobytes())
            if problem := _wrong_field(found, wanted, place):
                return problem
        return None

    def _expected_comparison(self) -> dict[str, float]:
        rows = self._layout.compared
        stock, ours = self._stock[rows].double(), self._ours[rows].double()
        finite = stock.isfinite() & ours.isfinite()
        difference, stock_there = (ours - stock)[finite], stock[finite]
        max_abs, squares = float(difference.abs().max()), float(difference.square().sum())
        stock_squares, all_stock_squares = float(stock_there.square().sum()), float(stock.square().nansum())
        return {
            "out_of_range": 0,
            "compare_calls": 2,
            "compare_rows": 2 * len(rows),
            "nonfinite": 1,
            "exceeded_calls": 1,
            "max_abs": max_abs,
            "last_max_abs": max_abs,
            "sum_sq_diff": squares,
            "sum_sq_stock": all_stock_squares + stock_squares,
            "last_rel_l2": (squares / stock_squares) ** 0.5,
            "worst_rel_l2": (squares / stock_squares) ** 0.5,
        }


class _Gate:
    """What a gate of every second call makes of a call's indptrs: of the first nothing, of the second the same."""

    def __init__(self, metadata: Metadata, device: torch.device):
        self._metadata = metadata
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.gated = [
            replace(
                metadata,
                qo_indptr=torch.full_like(metadata.qo_indptr, _UNWRITTEN),
                kv_indptr=torch.full_like(metadata.kv_indptr, _UNWRITTEN),
            )
            for _ in range(2)
        ]

    def problem(self) -> str | None:
        for opens, gated in enumerate(self.gated):
            for name in ("qo_indptr", "kv_indptr"):
                expected = (getattr(self._metadata, name) * opens).tolist()
                if (found := getattr(gated, name).tolist()) != expected:
                    return f"kdtree_gate, call {opens + 1}, {name}: expected {expected}, got {found}"
        return None


def _difference(record: torch.Tensor, mirror: torch.Tensor, expected: Mapping[str, float]) -> str | None:
    """What of `expected` the record or its mirror does not hold."""
    for place, words in (("record", record), ("mirror", mirror)):
        found = abi.LayerRecord.from_buffer_copy(words.cpu().numpy().tobytes())
        if problem := _wrong_field(found, expected, place):
            return problem
    return None


def _wrong_field(record: ctypes.Structure, expected: Mapping[str, float], place: str) -> str | None:
    for name, value in expected.items():
        found = getattr(record, name)
        if not abs(found - value) <= _RELATIVE * abs(value):
            return f"{name} in the {place}: expected {value:.12g}, got {found:.12g}"
    return None


def _case(shape: str, mode: Mode, problem: str | None) -> CaseResult:
    return CaseResult(shape, 0, "any", mode, 0.0, 1.0, problem)
