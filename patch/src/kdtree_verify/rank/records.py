"""What the device counts: a record a layer, a counter a reason for declining, a record a range of shapes; and how the
host sees it.

On a GPU the device updates plain device memory and stores each new value into host memory that is mapped into it,
so the host reads by looking: no CUDA call, no synchronization, and graph replay counts as eager calls do. The host
library updates the memory that is read.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import StrEnum

import torch

from ..native.abi import BATCH_BUCKETS, PREFIX_BUCKETS, LayerRecord, ShapeRecord
from .eligibility import Reason

LAYER_SLOTS = 512
"""Layers of target and draft models together; allocated before any capture, since a capture cannot allocate."""

_RECORD_BYTES = ctypes.sizeof(LayerRecord)
_REASONS = tuple(Reason)


class Model(StrEnum):
    """Whose layer a call belongs to."""

    TARGET = "target"
    DRAFT = "draft"


_MODELS = tuple(Model)
_COUNTERS = len(_REASONS) * len(_MODELS)
_CELLS = PREFIX_BUCKETS * BATCH_BUCKETS
_COUNTERS_OFFSET = LAYER_SLOTS * _RECORD_BYTES
_SHAPES_OFFSET = _COUNTERS_OFFSET + _COUNTERS * 8
_BYTES = _SHAPES_OFFSET + _CELLS * ctypes.sizeof(ShapeRecord)
# What only the device has a use for lies behind that, without a mirror: three stamps, and a gate's counter a layer.
_STAMPS_OFFSET = _BYTES
_GATES_OFFSET = _STAMPS_OFFSET + 3 * 8
_DEVICE_BYTES = _GATES_OFFSET + LAYER_SLOTS * 8


@dataclass(frozen=True)
class Place:
    """Addresses for the device of one record or counter and of its mirror (None: the host reads the record)."""

    record: int
    mirror: int | None


@dataclass(frozen=True)
class LayerFigures:
    """A layer's record as read at one moment; fields may be one call apart."""

    model: Model
    layer: int
    kernel_calls: int
    kernel_rows: int
    compare_calls: int
    compare_rows: int
    out_of_range: int
    nonfinite: int
    exceeded_calls: int
    max_abs: float
    rel_l2: float
    worst_rel_l2: float
    last_rel_l2: float
    last_max_abs: float


@dataclass(frozen=True)
class ShapeFigures:
    """The compared calls of one range of shapes: longest prefix of a call in tokens, requests compared; an end of None
    is open. Nanoseconds of stock's and of our computation are sums over the timed calls."""

    prefix_from: int
    prefix_below: int | None
    batch_from: int
    batch_below: int | None
    calls: int
    exceeded_calls: int
    nonfinite: int
    worst_rel_l2: float
    mean_rel_l2: float
    timed_calls: int
    stock_ns: int
    kernel_ns: int


class Records:
    """The records of one process on one device.

    Args:
        device: Where the kernel runs; `cpu` for the host library.
    """

    def __init__(self, device: torch.device):
        self._mirror: int | None = None
        if device.type == "cuda":
            from ..native import gpu

            self._memory = torch.zeros(_DEVICE_BYTES, dtype=torch.uint8, device=device)
            host, self._mirror = gpu.mapped_host_memory(device.index, _BYTES)
        else:
            self._memory = torch.zeros(_DEVICE_BYTES, dtype=torch.uint8)
            host = self._memory.data_ptr()
        self._base = self._memory.data_ptr()
        self._bytes = (ctypes.c_char * _BYTES).from_address(host)
        self._records = (LayerRecord * LAYER_SLOTS).from_address(host)
        self._counters = (ctypes.c_uint64 * _COUNTERS).from_address(host + _COUNTERS_OFFSET)
        self._cells = (ShapeRecord * _CELLS).from_address(host + _SHAPES_OFFSET)
        self._layers: dict[tuple[Model, int], Place] = {}
        self._declines = {
            (model, reason): self._place(_COUNTERS_OFFSET + 8 * i)
            for i, (model, reason) in enumerate((m, r) for m in _MODELS for r in _REASONS)
        }

    @property
    def device_bytes(self) -> int:
        """Memory on the device that the records take."""
        return self._memory.numel()

    def layer(self, model: Model, layer: int) -> Place | None:
        """The layer's record, given out at its first call; None when all are given out."""
        place = self._layers.get((model, layer))
        if place is None and len(self._layers) < LAYER_SLOTS:
            place = self._place(len(self._layers) * _RECORD_BYTES)
            self._layers[model, layer] = place
        return place

    @property
    def shape_table(self) -> Place:
        """The table of all layers' shapes."""
        return self._place(_SHAPES_OFFSET)

    def stamp(self, index: int) -> int:
        """Device address of one of a call's three stamps, which follow each other."""
        return self._base + _STAMPS_OFFSET + 8 * index

    def gate_counter(self, place: Place) -> int:
        """Device address of the counter by which the gate of this layer opens."""
        return self._base + _GATES_OFFSET + 8 * self._slot(place)

    def decline(self, model: Model, reason: Reason) -> Place:
        """The counter of calls that `model` declined for `reason`."""
        return self._declines[model, reason]

    def image(self) -> bytes:
        """All that the host sees, to tell cheaply whether anything has changed."""
        return self._bytes.raw

    def declined(self, model: Model) -> dict[Reason, int]:
        """Declined calls by reason, those that occurred."""
        first = _MODELS.index(model) * len(_REASONS)
        counts = self._counters[first : first + len(_REASONS)]
        return {reason: count for reason, count in zip(_REASONS, counts, strict=True) if count}

    def layers(self) -> list[LayerFigures]:
        """Every layer that has a record, target first, in layer order."""
        keys = sorted(self._layers.copy().items(), key=lambda item: (_MODELS.index(item[0][0]), item[0][1]))
        return [self._figures(model, layer, self._records[self._slot(place)]) for (model, layer), place in keys]

    def shapes(self) -> list[ShapeFigures]:
        """The ranges of shapes that have calls."""
        return [_shape(index, cell) for index, cell in enumerate(self._cells) if cell.calls]

    def _slot(self, place: Place) -> int:
        return (place.record - self._base) // _RECORD_BYTES

    def _place(self, offset: int) -> Place:
        return Place(self._base + offset, None if self._mirror is None else self._mirror + offset)

    @staticmethod
    def _figures(model: Model, layer: int, record: LayerRecord) -> LayerFigures:
        stock = record.sum_sq_stock
        return LayerFigures(
            model=model,
            layer=layer,
            kernel_calls=record.kernel_calls,
            kernel_rows=record.kernel_rows,
            compare_calls=record.compare_calls,
            compare_rows=record.compare_rows,
            out_of_range=record.out_of_range,
            nonfinite=record.nonfinite,
            exceeded_calls=record.exceeded_calls,
            max_abs=record.max_abs,
            rel_l2=(record.sum_sq_diff / stock) ** 0.5 if stock else 0.0,
            worst_rel_l2=record.worst_rel_l2,
            last_rel_l2=record.last_rel_l2,
            last_max_abs=record.last_max_abs,
        )


def _shape(index: int, cell: ShapeRecord) -> ShapeFigures:
    prefix, batch = divmod(index, BATCH_BUCKETS)
    return ShapeFigures(
        prefix_from=1024 << (prefix - 1) if prefix else 0,
        prefix_below=None if prefix == PREFIX_BUCKETS - 1 else 1024 << prefix,
        batch_from=1 << batch,
        batch_below=None if batch == BATCH_BUCKETS - 1 else 2 << batch,
        calls=cell.calls,
        exceeded_calls=cell.exceeded_calls,
        nonfinite=cell.nonfinite,
        worst_rel_l2=cell.worst_rel_l2,
        mean_rel_l2=cell.sum_rel_l2 / cell.calls,
        timed_calls=cell.timed_calls,
        stock_ns=cell.stock_ns,
        kernel_ns=cell.kernel_ns,
    )
