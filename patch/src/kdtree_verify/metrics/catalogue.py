"""Every metric: its name, type and labels, and where its value stands in a rank's document (report.document)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..reporting.state import State

Document = dict[str, Any]
Values = Iterator[tuple[tuple[str, ...], float]]
"""Label values, in the metric's order, and the value."""
Read = Callable[[Document], Values]

RANK_LABELS = ("tp_rank", "pp_rank", "dp_rank")
"""On every series, named as SGLang names them, whose own lack dp_rank without data parallelism."""
ARMED_STATES = (State.ARMED, State.SERVING, State.NOT_SERVING, State.FAILED)
"""Those of a rank that publishes."""
_TARGET = "target"  # records.Model.TARGET, which would bring torch


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is scraped.
        kind: Its type.
        help: Its HELP line.
        read: What a rank's document says of it. A counter's value never falls while the rank lives.
        labels: Beside RANK_LABELS.
    """

    name: str
    kind: Kind
    help: str
    read: Read
    labels: tuple[str, ...]


def _counter(name: str, help_line: str, read: Read, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, help_line, read, labels)


def _gauge(name: str, help_line: str, read: Read, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, help_line, read, labels)


def _info(document: Document) -> Values:
    versions, library, device = (document[name] or {} for name in ("versions", "library", "device"))
    shown = [document["mode"], *(versions.get(name) for name in ("kdtree_verify", "sglang", "torch", "cuda"))]
    shown += [library.get("version"), library.get("sha256"), device.get("name") or device.get("kind")]
    yield tuple(str(value or "") for value in shown), 1.0


def _states(document: Document) -> Values:
    for state in ARMED_STATES:
        yield (state.value,), float(document["state"] == state)


def _field(name: str) -> Callable[[Document], Values]:
    def read(document: Document) -> Values:
        yield (), document[name]

    return read


def _verify_calls(document: Document) -> Values:
    yield (), document["counters"]["verify_calls"]


def _declined(document: Document) -> Values:
    for told, count in document["counters"]["declined"].items():
        model, _, reason = told.rpartition(":")
        yield (model or _TARGET, reason), count


def _by_model(name: str) -> Callable[[Document], Values]:
    """The sum of a field over a model's layers."""

    def read(document: Document) -> Values:
        for model in sorted({_TARGET, *(layer["model"] for layer in document["layers"])}):
            yield (model,), sum(layer[name] for layer in document["layers"] if layer["model"] == model)

    return read


def _by_layer(name: str) -> Callable[[Document], Values]:
    """A field of each layer that was compared: before that it says nothing."""

    def read(document: Document) -> Values:
        for layer in document["layers"]:
            if layer["compare_calls"]:
                yield (layer["model"], str(layer["layer"])), layer[name]

    return read


def _bound(document: Document) -> Values:
    if (pool := document["pool_dtype"]) is not None:
        yield (pool,), document["bound"][pool]


def _by_prefix(name: str, scale: float = 1.0) -> Callable[[Document], Values]:
    """The sum of a field over the cells of a prefix length, in which calls were timed."""

    def read(document: Document) -> Values:
        cells = [cell for cell in document["shapes"] if cell["timed_calls"]]
        for start in sorted({cell["prefix_from"] for cell in cells}):
            total = sum(cell[name] for cell in cells if cell["prefix_from"] == start)
            yield (str(start),), total / scale

    return read


def _captures(document: Document) -> Values:
    if (captures := document["captures"]) is not None:
        yield (), captures


def _sampled(name: str) -> Callable[[Document], Values]:
    def read(document: Document) -> Values:
        if (sampled := document["sampled"]) is not None:
            yield (), sampled[name]

    return read


_INFO = ("mode", "version", "sglang", "torch", "cuda", "library", "library_sha256", "device")
METRICS = (
    _gauge("kdtree_rank_info", "Always 1; what this rank runs is in its labels.", _info, *_INFO),
    _gauge("kdtree_rank_state", "1 for the state that the rank is in, 0 for the others.", _states, "state"),
    _gauge("kdtree_rank_start_time_seconds", "When the rank was armed, in Unix time.", _field("started_at")),
    _gauge(
        "kdtree_rank_state_start_time_seconds", "Since when it is in its state, in Unix time.", _field("state_since")
    ),
    _gauge("kdtree_rank_report_time_seconds", "When the rank last reported, in Unix time.", _field("updated_at")),
    _counter("kdtree_verify_calls_total", "Attention calls of tree verify, one a layer and step.", _verify_calls),
    _counter("kdtree_kernel_calls_total", "Verify calls that KDTree computed.", _by_model("kernel_calls"), "model"),
    _counter("kdtree_declined_calls_total", "Verify calls left to stock, by reason.", _declined, "model", "reason"),
    _counter("kdtree_out_of_range_total", "Indices and sizes that KDTree refused.", _by_model("out_of_range"), "model"),
    _counter("kdtree_compared_calls_total", "Verify calls compared with stock.", _by_model("compare_calls"), "model"),
    _counter("kdtree_nonfinite_values_total", "NaN or Inf where stock's was finite.", _by_model("nonfinite"), "model"),
    _counter("kdtree_exceeded_calls_total", "Calls beyond the bound.", _by_layer("exceeded_calls"), "model", "layer"),
    _gauge(
        "kdtree_worst_relative_l2_ratio",
        "Relative L2 difference from stock, of the worst call so far.",
        _by_layer("worst_rel_l2"),
        *("model", "layer"),
    ),
    _gauge(
        "kdtree_last_relative_l2_ratio",
        "Relative L2 difference from stock, of the last call that was compared.",
        _by_layer("last_rel_l2"),
        *("model", "layer"),
    ),
    _gauge("kdtree_relative_l2_bound_ratio", "The bound of that difference with this KV cache.", _bound, "pool_dtype"),
    _counter(
        "kdtree_timed_calls_total",
        "Calls of which both kernels were timed, by prefix: from so many tokens up to the next one's.",
        _by_prefix("timed_calls"),
        "prefix_from",
    ),
    _counter("kdtree_stock_seconds_total", "Stock's time in them.", _by_prefix("stock_ns", 1e9), "prefix_from"),
    _counter("kdtree_kernel_seconds_total", "KDTree's time in them.", _by_prefix("kernel_ns", 1e9), "prefix_from"),
    _counter("kdtree_sampled_calls_total", "With on and KDTREE_SAMPLE: calls that stock ran too.", _sampled("calls")),
    _counter("kdtree_sampled_exceeded_calls_total", "Of them, beyond the bound.", _sampled("exceeded_calls")),
    _counter("kdtree_captures_total", "Files that were kept of calls beyond the bound.", _captures),
)
