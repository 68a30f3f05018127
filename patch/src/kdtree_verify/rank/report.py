"""An armed rank's figures, as its state file and as one line of the log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..config import Mode
from ..native.library import Description
from ..reporting import state
from .kernel import POOL_NAMES, REL_L2_BOUND, REL_L2_BOUND_FP8_POOL, rel_l2_bound
from .rank import Rank
from .records import LayerFigures, Model

_FP8_BOUNDS = " and ".join(
    f"{bound:g} ({str(dtype).removeprefix('torch.float8_')})" for dtype, bound in REL_L2_BOUND_FP8_POOL.items()
)


def document(rank: Rank, identity: state.Identity, device: dict[str, Any]) -> dict[str, Any]:
    """The rank's state file. `device`: facts about the device it runs on."""
    layers = rank.records.layers()
    declined = _declined(rank, "draft:")
    kernel_calls = sum(figures.kernel_calls for figures in layers)
    return state.rank_document(rank.mode, identity, rank.verdict()) | {
        "started_at": rank.started_at,
        "state_since": rank.state_since,
        "device": device,
        "library": _library(rank.kernel.library.description),
        "counters": {
            "verify_calls": kernel_calls + sum(declined.values()),
            "kernel_calls": kernel_calls,
            "declined": declined,
            "out_of_range": sum(figures.out_of_range for figures in layers),
            "not_verify_calls": rank.not_verify_calls,
        },
        "layers": [_layer(figures, rank.mode) for figures in layers],
        "heads": rank.armed.heads,
        "draft_tokens": rank.armed.draft_tokens,
        "bound": {name: rel_l2_bound(dtype) for dtype, name in POOL_NAMES.items()},
        "pool_dtype": None if rank.pool_dtype is None else POOL_NAMES[rank.pool_dtype],
        "shapes": [asdict(figures) for figures in rank.records.shapes()],
        "yardstick": None if rank.armed.yardstick is None else asdict(rank.armed.yardstick),
        "sampled": _sampled(rank, layers),
        # Calls out of bound of which nothing is kept, for these reasons.
        "box": None if rank.box is None else {"too_large": rank.box.too_large, "found_full": rank.box.found_full},
    }


def line(rank: Rank) -> str:
    """The rank in one line."""
    verdict, layers = rank.verdict(), rank.records.layers()
    declined = ", ".join(f"{reason} {count}" for reason, count in _declined(rank, "draft ").items())
    parts = [
        f"kdtree {rank.mode}: {verdict.state}" + (f" ({verdict.reason})" if verdict.reason else ""),
        f"{sum(figures.kernel_calls for figures in layers)} kernel calls in {len(layers)} layers",
        f"declined {declined or 'none'}",
        f"out of range {sum(figures.out_of_range for figures in layers)}",
    ]
    if sampled := _sampled(rank, layers):
        parts += [f"{sampled['calls']} calls sampled (1 of {sampled['every']})"]
    compared = [figures for figures in layers if figures.compare_calls]
    if compared:
        worst = max(compared, key=lambda figures: figures.worst_rel_l2)
        parts += [
            f"worst relative L2 {worst.worst_rel_l2:.2e} ({_name(worst)})",
            f"max abs {max(figures.max_abs for figures in compared):.2e}",
            f"NaN/Inf {sum(figures.nonfinite for figures in compared)}",
            f"calls out of bound {sum(figures.exceeded_calls for figures in compared)}",
        ]
    return "; ".join(parts)


def out_of_bound_line(figures: LayerFigures, mode: Mode) -> str:
    """What is said when a layer leaves its bound."""
    served = (
        "stock's answers are served"
        if mode is Mode.VALIDATE
        else "this kernel's answers are served. Fix: set KDTREE_VERIFY=off, or validate to measure every call"
    )
    return (
        f"kdtree {mode}: {_name(figures)} left its bound: relative L2 {figures.worst_rel_l2:.2e} at worst "
        f"(bound {REL_L2_BOUND:g}, fp8 pool {_FP8_BOUNDS}), max abs {figures.max_abs:.2e}, "
        f"NaN/Inf {figures.nonfinite}, in {figures.exceeded_calls} of {figures.compare_calls} calls compared; {served}"
    )


def _name(figures: LayerFigures) -> str:
    return f"{'draft ' if figures.model is Model.DRAFT else ''}layer {figures.layer}"


def _declined(rank: Rank, draft_prefix: str) -> dict[str, int]:
    declined = {str(reason): count for reason, count in rank.records.declined(Model.TARGET).items()}
    for reason, count in rank.records.declined(Model.DRAFT).items():
        declined[f"{draft_prefix}{reason}"] = count
    return declined


def _sampled(rank: Rank, layers: list[LayerFigures]) -> dict[str, int] | None:
    """What `on` had stock compute as well; None where it does not."""
    if rank.mode is not Mode.ON or not rank.armed.sample_every:
        return None
    return {
        "every": rank.armed.sample_every,
        "calls": sum(figures.compare_calls for figures in layers),
        "exceeded_calls": sum(figures.exceeded_calls for figures in layers),
    }


def _library(description: Description) -> dict[str, Any]:
    return {
        "path": str(description.path),
        "sha256": description.sha256,
        "version": description.version,
        "source_hash": description.source_hash,
        "archs": list(description.archs),
        "kind": description.device_kind,
        "compiler": description.compiler,
    }


def _layer(figures: LayerFigures, mode: Mode) -> dict[str, Any]:
    # What a reader wants first: calls and rows of the work that this mode does.
    validated = mode is Mode.VALIDATE
    return asdict(figures) | {
        "model": str(figures.model),
        "calls": figures.compare_calls if validated else figures.kernel_calls,
        "rows": figures.compare_rows if validated else figures.kernel_rows,
    }
