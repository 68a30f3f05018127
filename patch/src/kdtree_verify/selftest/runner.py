"""Launches every case and measures it on the device; results are read back once, at the end.

There is one graph for all cases. It is captured over blank indptrs, indices and masks, and these are filled
in before the replay, as SGLang does.

Bounds. With x the largest magnitude of a value, a result may differ from float64 by
    one column:  x * (2^-9 + 2^-9 + 2^-14)  P rounded to bf16, the output too, float32 arithmetic
    signed sum:  2 sqrt(512) * the same     512 roundings add up as a random walk; twice that, since those of
                                            a row in which one key outweighs all others are not independent
An exact result rounded to bf16 stays below half of the first, an ideal bf16 kernel below 3/4. What is
recorded is on average 20 to 75 times the first, and 12 to 45 times the second.
"""

from __future__ import annotations

import math
import time

import torch

from ..native import abi
from ..native.call import DTYPES, Call, verify_args
from ..native.library import Library
from . import golden
from .counters import Counters
from .report import CaseResult, Mode, SelftestReport
from .shapes import MARKER, SHAPES, Layout, Metadata, build, make_inputs

_ROWS_AT_ONCE = 1 << 15  # output rows measured at once: 64 MiB in float32
# Columns of a case's row in the results.
_RATIO, _PLACE, _GOT, _EXPECTED, _BOUND, _STRAY, _OUT_OF_RANGE, _WIDTH = range(8)


def bounds(largest_value: float) -> tuple[float, float]:
    """What a column and a signed sum may differ by (module docstring)."""
    column = largest_value * (2.0**-8 + 2.0**-14)
    return column, 2 * math.sqrt(abi.V_DIM) * column


class Runner:
    """The buffers of one run on one device."""

    def __init__(self, library: Library, device: torch.device, num_heads: int, max_draft_tokens: int):
        self._began = time.perf_counter()
        self._library, self._device = library, device
        self._num_heads, self._max_draft_tokens = num_heads, max_draft_tokens
        self._on_gpu = device.type == "cuda"
        self._ordinal = (device.index or 0) if self._on_gpu else -1
        library.check(library.supports_device(self._ordinal), f"kdtree_supports_device({self._ordinal})")
        inputs = make_inputs(num_heads, max_draft_tokens, device)
        shapes = [shape for shape in SHAPES if DTYPES[shape.first.pool_dtype] in library.description.pool_dtypes]
        self._layouts = [build(shape, num_heads, max_draft_tokens, device, inputs) for shape in shapes]
        self._signs = golden.signs().float().to(device)
        workspace_bytes = library.workspace_size(
            device=self._ordinal,
            num_heads=num_heads,
            max_q_len=max_draft_tokens,
            max_batch=max(len(shape.members) for shape in shapes),
        )
        self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        self._counters = Counters(library, device, self._ordinal, self._workspace, self._layouts[-1])
        modes: tuple[Mode, ...] = ("eager", "graph") if self._on_gpu else ("eager",)
        variants = range(1, len(library.description.variants) + 1)
        self._cases = [(mode, layout, variant) for mode in modes for layout in self._layouts for variant in variants]
        self._results = torch.zeros(len(self._cases), _WIDTH, dtype=torch.float64, device=device)
        self._refused: dict[int, int] = {}  # case -> status of a launch that was not OK

    def run(self) -> SelftestReport:
        """Runs every case, once."""
        self._synchronize()
        prepared = time.perf_counter()
        self._launch_all("eager", [layout.eager for layout in self._layouts])
        self._synchronize()
        eager = time.perf_counter()
        if self._on_gpu:
            self._replay()
        cases = self._verdicts() + self._counters.verdicts()
        description = self._library.description
        return SelftestReport(
            device=str(self._device),
            device_name=torch.cuda.get_device_name(self._device) if self._on_gpu else "host library",
            library=str(description.path),
            sha256=description.sha256,
            num_heads=self._num_heads,
            max_draft_tokens=self._max_draft_tokens,
            cases=tuple(cases),
            seconds={
                "prepare": prepared - self._began,
                "eager": eager - prepared,
                "graph": time.perf_counter() - eager if self._on_gpu else 0.0,
            },
        )

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def _launch_all(self, mode: Mode, metadata: list[Metadata]) -> None:
        """Launches a mode's cases, with the metadata given for each layout, and what proves the counters.

        On the current stream, and without anything that a capture forbids.
        """
        of_layout = dict(zip((layout.shape.name for layout in self._layouts), metadata, strict=True))
        for index, (case_mode, layout, variant) in enumerate(self._cases):
            if case_mode == mode:
                self._launch(index, layout, of_layout[layout.shape.name], variant)
        self._counters.launch(mode, metadata[-1])

    def _replay(self) -> None:
        blanks = [layout.graph.blank() for layout in self._layouts]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            # torch.cuda.graph() would also collect garbage: seconds in a process that holds a model.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._launch_all("graph", blanks)
            finally:
                graph.capture_end()
            for layout, blank in zip(self._layouts, blanks, strict=True):
                for empty, filled in zip(blank.tensors(), layout.graph.tensors(), strict=True):
                    empty.copy_(filled)
            graph.replay()
        stream.synchronize()

    def _launch(self, index: int, layout: Layout, metadata: Metadata, variant: int) -> None:
        layout.storage.fill_(MARKER)
        self._workspace.fill_(0xFF)
        args = self._args(layout, metadata)
        args.variant = variant
        args.device = self._ordinal
        args.stream = torch.cuda.current_stream(self._device).cuda_stream if self._on_gpu else None
        args.workspace, args.workspace_bytes = self._workspace.data_ptr() or None, self._workspace.numel()
        args.record, args.mirror = self._counters.record.data_ptr(), self._counters.mirror.data_ptr()
        status = self._library.verify(args)
        if status == abi.Status.OK:
            self._counters.expect_verify(layout.named_rows)
            self._measure(index, layout)
        else:
            self._refused[index] = status

    def _args(self, layout: Layout, metadata: Metadata) -> abi.VerifyArgs:
        # Through the same conversion as a call of SGLang's.
        request = layout.shape.first
        call = Call(
            q_extend=layout.q,
            k_extend=layout.k,
            v_extend=layout.v,
            o_extend=layout.out,
            k_buffer=layout.pool,
            v_buffer=layout.pool[..., : abi.V_DIM],
            qo_indptr=metadata.qo_indptr,
            kv_indptr=metadata.kv_indptr,
            kv_indices=metadata.kv_indices,
            custom_mask=metadata.mask,
            is_causal=True,
            mask_indptr=metadata.mask_indptr,
            max_len_extend=self._max_draft_tokens,
            k_scale=request.k_scale,
            v_scale=request.v_scale,
            sm_scale=golden.SM_SCALE,
        )
        return verify_args(call, layout.out)

    def _measure(self, index: int, layout: Layout) -> None:
        got = torch.cat([self._numbers(layout, rows) for rows in self._row_chunks(layout)]).double()
        limits = torch.empty_like(got)
        limits[..., 0], limits[..., 1] = bounds(layout.shape.first.largest_value)
        ratios = ((got - layout.expected).abs() / limits).nan_to_num(nan=torch.inf)
        place = ratios.argmax().view(1)
        ratio, got_there, expected, limit = (
            values.flatten()[place] for values in (ratios, got, layout.expected, limits)
        )
        unnamed, gaps = layout.storage[layout.unnamed], layout.storage[..., abi.V_DIM :]
        stray = ((unnamed != MARKER).sum() + (gaps != MARKER).sum()).view(1)
        row = [ratio, place, got_there, expected, limit, stray, self._counters.out_of_range()]
        self._results[index].copy_(torch.cat(row))

    def _row_chunks(self, layout: Layout) -> list[slice]:
        step = max(1, _ROWS_AT_ONCE // self._num_heads)
        return [slice(row, row + step) for row in range(0, len(layout.compared), step)]

    def _numbers(self, layout: Layout, rows: slice) -> torch.Tensor:
        # [rows, heads, 2], as golden.npz has them. Products with signs are exact, and what a float32 sum of
        # 512 loses is far below the bound.
        output = layout.out[layout.compared[rows]].float()
        column = output.gather(-1, layout.columns[rows, :, None])
        return torch.cat([column, (output * self._signs).sum(-1, keepdim=True)], dim=-1)

    def _verdicts(self) -> list[CaseResult]:
        verdicts, out_of_range_before = [], 0.0
        for index, (result, (mode, layout, variant)) in enumerate(
            zip(self._results.tolist(), self._cases, strict=True)
        ):
            problem = self._problem(index, layout, result, out_of_range_before)
            out_of_range_before = max(out_of_range_before, result[_OUT_OF_RANGE])
            bound = result[_BOUND] or bounds(layout.shape.first.largest_value)[0]
            error = math.inf if index in self._refused else result[_RATIO] * bound
            name = self._library.description.variants[variant - 1]
            verdicts.append(CaseResult(layout.shape.name, variant, name, mode, error, bound, problem))
        return verdicts

    def _problem(self, index: int, layout: Layout, result: list[float], out_of_range_before: float) -> str | None:
        if index in self._refused:
            status = self._refused[index]
            return f"the launch was refused: status {status}, {self._library.status_text(status)}"
        if result[_RATIO] > 1:
            row, rest = divmod(int(result[_PLACE]), 2 * self._num_heads)
            head, which = divmod(rest, 2)
            what = "signed sum of the columns" if which else f"column {int(layout.columns[row, head])}"
            return (
                f"{layout.where(row, head)}, {what}: expected {result[_EXPECTED]:.6g}, "
                f"got {result[_GOT]:.6g}, bound {result[_BOUND]:.2g}"
            )
        if result[_STRAY]:
            return f"{int(result[_STRAY])} elements written that the call does not name, expected none"
        if result[_OUT_OF_RANGE] > out_of_range_before:
            count = int(result[_OUT_OF_RANGE] - out_of_range_before)
            return f"{count} reads counted as out of range, expected none"
        return None
