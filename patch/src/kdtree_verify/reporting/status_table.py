"""A state folder for a person: `kdtree status`."""

from __future__ import annotations

import time
from typing import Any

from ..terminal import columns, printable
from .status import Rank, Snapshot

_WORST_LAYERS = 3
_RANK_HEAD = (
    *("rank", "mode", "state", "since", "pid", "up", "age"),
    *("verify calls", "kernel calls", "out of range", "declined"),
)
_LAYER_HEAD = ("worst layers", "rank", "worst rel. L2", "rel. L2", "max abs", "compared", "beyond bound", "NaN/Inf")


def table(snapshot: Snapshot) -> str:
    """The snapshot for a person."""
    lines = [_server_line(snapshot), ""]
    lines += columns([_RANK_HEAD, *map(_rank_row, snapshot.ranks)]) if snapshot.ranks else ["no rank reports"]
    lines += [f"{rank.name}: {_reason(rank)}" for rank in snapshot.ranks if _reason(rank)]
    worst = sorted(
        ((layer.get("worst_rel_l2") or 0.0, rank.name, layer) for rank in snapshot.ranks for layer in rank.layers),
        key=lambda found: found[0],
        reverse=True,
    )[:_WORST_LAYERS]
    if worst and any(layer.get("compare_calls") for _, _, layer in worst):
        lines += ["", *columns([_LAYER_HEAD, *(_layer_row(name, layer) for _, name, layer in worst)])]
    lines += ["", *_library_lines(snapshot), *(f"warning: {warning}" for warning in snapshot.warnings())]
    # A reason, or a file that is not ours, may hold anything: what could steer a terminal is not shown.
    return "\n".join(map(printable, lines)).rstrip()


def _server_line(snapshot: Snapshot) -> str:
    if snapshot.server is None:
        return f"no server has reported in {snapshot.directory}" + (f": {snapshot.error}" if snapshot.error else "")
    server, expected = snapshot.server, snapshot.expected_ranks
    up = f"up {_duration(time.time() - server['started_at'])}" if snapshot.server_alive else "DEAD"
    return (
        f"server: mode {snapshot.mode}, pid {server['pid']}, {up}, {len(snapshot.ranks)} of "
        f"{'an unknown number of' if expected is None else expected} ranks report in {snapshot.directory}"
    )


def _rank_row(rank: Rank) -> tuple[str, ...]:
    state = rank.state or "unreadable"
    since = rank.document.get("state_since")
    if rank.phase:  # what takes its time: the reader wants to know what, and since when
        state, since = f"{state}: {rank.phase}", rank.document.get("phase_since")
    if not rank.alive:
        state += ", DEAD"
    elif rank.stale:
        state += ", STALE"
    declined = ", ".join(f"{reason} {count}" for reason, count in rank.declined.items())
    counts = (str(rank.counter(name)) for name in ("verify_calls", "kernel_calls", "out_of_range"))
    return (
        rank.name,
        rank.mode or "?",
        state,
        _moment(since) if since is not None else "?",
        str(rank.document.get("pid", "?")),
        _duration(time.time() - rank.document["started_at"]) if rank.alive else "-",
        _duration(rank.age),
        *counts,
        declined or "-",
    )


def _moment(seconds: float) -> str:
    now, then = time.localtime(), time.localtime(min(seconds, time.time()))
    today = (now.tm_year, now.tm_yday) == (then.tm_year, then.tm_yday)
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def _reason(rank: Rank) -> str | None:
    return rank.error or rank.document.get("reason")


def _layer_row(rank_name: str, layer: dict[str, Any]) -> tuple[str, ...]:
    draft = "draft " if layer.get("model") == "draft" else ""
    figures = (f"{layer.get(name) or 0.0:.2e}" for name in ("worst_rel_l2", "rel_l2", "max_abs"))
    counts = (str(layer.get(name) or 0) for name in ("compare_calls", "exceeded_calls", "nonfinite"))
    return (f"{draft}layer {layer.get('layer')}", rank_name, *figures, *counts)


def _library_lines(snapshot: Snapshot) -> list[str]:
    # Of one rank: that the others have the same is a warning's business.
    documents = [rank.document for rank in snapshot.ranks if rank.document]
    if not documents:
        return []
    first = next((document for document in documents if document.get("library")), documents[0])
    versions = ", ".join(f"{name} {version}" for name, version in (first.get("versions") or {}).items() if version)
    lines = [f"versions: {versions}"]
    if library := first.get("library"):
        device = first.get("device") or {}
        archs = f" ({', '.join(library['archs'])})" if library.get("archs") else ""
        on = device.get("name") or device.get("kind")
        lines.append(f"library: {library['path']}{archs}, sha256 {library['sha256'][:12]}, on {on}")
    return lines


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 0.0):.0f}s"  # a clock that was set back
    minutes = int(seconds // 60)
    return f"{minutes}m" if minutes < 100 else f"{minutes // 60}h{minutes % 60:02}m"
