"""Reads the folder of evidence. A file is read whole or not at all, and why not is part of the answer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .. import jsonfile
from . import files
from .form import Form
from .setup import Setup

_MOST_BYTES = 4 * files.FILE_BYTES


@dataclass(frozen=True)
class Layer:
    """A layer's counts and differences (records.LayerFigures)."""

    model: str
    layer: int
    kernel_calls: int
    compare_calls: int
    out_of_range: int
    nonfinite: int
    exceeded_calls: int
    max_abs: float
    rel_l2: float
    worst_rel_l2: float

    @property
    def key(self) -> tuple[str, int]:
        return self.model, self.layer


@dataclass(frozen=True)
class Cell:
    """Calls of one range of prefix lengths and one of batches; a call is one layer's. Upper ends are None where open.

    `stock_ns` and `kernel_ns` are sums over the `timed_calls`.
    """

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
    stock_ns: float
    kernel_ns: float


@dataclass(frozen=True)
class Yardstick:
    """Both kernels' relative L2 difference from float64 on the self-test's cases."""

    stock_rel_l2: float
    kernel_rel_l2: float
    case: str


@dataclass(frozen=True)
class Point:
    """An interval of the history (history.Point); `layers` by (model, layer)."""

    start: float
    end: float
    calls: int
    exceeded: int
    worst: float
    mean: float | None
    layers: dict[tuple[str, int], float]


@dataclass(frozen=True)
class Entry:
    """One rank of one server run.

    Attributes:
        name: The file's.
        id: The file's own, whatever it is named.
        run, host, expected_ranks: evidence.server.Server's.
        ended: Whether the process came to a clean end.
        pipeline: The rank's pipeline stage.
        declined: Calls that stock ran, by reason.
        bounds: Largest allowed relative L2 difference by the pool's dtype.
        sampled_exceeded: Calls beyond their bound that sampling with `on` found.
    """

    name: str
    id: str
    run: str
    host: str
    expected_ranks: int | None
    setup: Setup
    started_at: float
    updated_at: float
    ended: bool
    active_seconds: float
    rank: str
    pipeline: int
    mode: str
    state: str
    reason: str | None
    verify_calls: int
    out_of_range: int
    declined: dict[str, int]
    layers: tuple[Layer, ...]
    cells: tuple[Cell, ...]
    bounds: dict[str, float]
    yardstick: Yardstick | None
    sampled_exceeded: int
    points: tuple[Point, ...]

    @property
    def compared(self) -> int:
        """Calls compared, over all layers."""
        return sum(layer.compare_calls for layer in self.layers)


@dataclass(frozen=True)
class Unreadable:
    """A file that is no evidence, and why."""

    name: str
    why: str


def folder(directory: Path) -> tuple[list[Entry], list[Unreadable]]:
    """All files of the folder, the oldest first.

    Raises:
        OSError: The folder cannot be read.
    """
    entries: dict[str, Entry] = {}
    unreadable = []
    for path in files.paths(directory):
        try:
            entry = _entry(path)
            if entry.id in entries:
                raise ValueError(f"a copy of {entries[entry.id].name}")
            entries[entry.id] = entry
        except OSError as error:
            unreadable.append(Unreadable(path.name, error.strerror or "cannot be read"))
        except ValueError as error:
            unreadable.append(Unreadable(path.name, str(error)))
    return sorted(entries.values(), key=lambda entry: entry.started_at), unreadable


def _entry(path: Path) -> Entry:
    document = Form(jsonfile.read(path, _MOST_BYTES))
    if document.maybe_text("kind") != files.KIND or document.count("schema") != files.SCHEMA:
        raise ValueError(f"not evidence of this version (schema {files.SCHEMA})")
    return _parse(path.name, document)


def _parse(name: str, document: Form) -> Entry:
    server, rank = document.form("server"), document.form("rank")
    identity = rank.form("rank")
    counters = rank.form("counters")
    keys = [_layer_key(item) for item in document.sequence("layers")]
    sampled = rank.form("sampled").count("exceeded_calls") if "sampled" in rank else 0
    return Entry(
        name=name,
        id=document.text("id"),
        run=server.text("run"),
        host=server.text("host"),
        expected_ranks=server.maybe_count("expected_ranks"),
        setup=_setup(document.form("setup")),
        started_at=document.time("started_at"),
        updated_at=document.time("updated_at"),
        ended=document.flag("ended"),
        active_seconds=document.finite("active_seconds"),
        rank=identity.text("name"),
        pipeline=identity.count("pp"),
        mode=rank.text("mode"),
        state=rank.text("state"),
        reason=rank.maybe_text("reason"),
        verify_calls=counters.count("verify_calls"),
        out_of_range=counters.count("out_of_range"),
        declined=counters.counts("declined"),
        layers=tuple(_layer(each) for each in rank.forms("layers")),
        cells=tuple(_cell(each) for each in rank.forms("shapes")),
        bounds=rank.numbers("bound"),
        yardstick=_yardstick(rank),
        sampled_exceeded=sampled,
        points=tuple(_point(each, keys) for each in document.forms("points")),
    )


def _setup(form: Form) -> Setup:
    sizes = {"tp_size", "pp_size", "dp_size", "heads", "draft_tokens"}
    values: dict[str, Any] = {
        field.name: form.maybe_count(field.name) if field.name in sizes else form.maybe_text(field.name)
        for field in fields(Setup)
    }
    return Setup(**values)


def _layer(form: Form) -> Layer:
    counts = ("layer", "kernel_calls", "compare_calls", "out_of_range", "nonfinite", "exceeded_calls")
    return Layer(
        model=form.text("model"),
        **{name: form.count(name) for name in counts},
        max_abs=form.number("max_abs"),
        rel_l2=form.number("rel_l2"),
        worst_rel_l2=form.number("worst_rel_l2"),
    )


def _cell(form: Form) -> Cell:
    return Cell(
        prefix_from=form.count("prefix_from"),
        prefix_below=form.maybe_count("prefix_below"),
        batch_from=form.count("batch_from"),
        batch_below=form.maybe_count("batch_below"),
        calls=form.count("calls"),
        exceeded_calls=form.count("exceeded_calls"),
        nonfinite=form.count("nonfinite"),
        worst_rel_l2=form.number("worst_rel_l2"),
        mean_rel_l2=form.number("mean_rel_l2"),
        timed_calls=form.count("timed_calls"),
        stock_ns=form.finite("stock_ns"),
        kernel_ns=form.finite("kernel_ns"),
    )


def _yardstick(rank: Form) -> Yardstick | None:
    if "yardstick" not in rank:
        return None
    form = rank.form("yardstick")
    return Yardstick(form.number("stock_rel_l2"), form.number("kernel_rel_l2"), form.text("case"))


def _layer_key(item: Any) -> tuple[str, int]:
    if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and type(item[1]) is int):
        raise ValueError("layers holds what is no layer")
    return item[0], item[1]


def _point(form: Form, keys: list[tuple[str, int]]) -> Point:
    values = form.maybe_numbers("layers")
    return Point(
        start=form.time("start"),
        end=form.time("end"),
        calls=form.count("calls"),
        exceeded=form.count("exceeded"),
        worst=form.number("worst"),
        mean=form.maybe_number("mean"),
        layers={key: value for key, value in zip(keys, values, strict=False) if value is not None},
    )
