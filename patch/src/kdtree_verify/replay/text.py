"""A replay's findings, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..finite import finite
from .capture import Capture
from .judge import Again, Distance, Judgement, Verdict
from .origin import Origin
from .reference import Reference

SCHEMA = 1


@dataclass(frozen=True)
class Where:
    """What repeats what: the capture's file, this device's name, and its library (origin.library_facts)."""

    file: Path
    device: str
    library: dict[str, str]


def document(where: Where, capture: Capture, origin: Origin, found: Judgement) -> dict[str, Any]:
    """What `--json` prints; figures that are not finite are null."""
    return finite(
        {
            "schema": SCHEMA,
            "file": str(where.file),
            "made": asdict(origin),
            "call": {
                "model": str(capture.model),
                "layer": capture.layer,
                "draft_tokens": capture.draft_tokens,
                "heads": capture.heads,
                "prefix": capture.prefix_length,
                "pool_dtype": _pool(capture),
                "mask": capture.visible is not None,
                "request": capture.request,
                "batch": capture.batch,
                "rel_l2": capture.rel_l2,
                "bound": capture.bound,
                "request_rel_l2": found.between,
            },
            "repeated_on": where.device,
            "repeated_by": where.library,
            "same_library": found.same_library,
            "limits": {"stock": found.stock_limit, "ours": found.ours_limit},
            "recorded": {"stock": asdict(found.stock), "ours": asdict(found.ours)},
            "repeated": {
                "stock": None if found.stock_again is None else asdict(found.stock_again),
                "ours": [asdict(each) for each in found.again],
            },
            "verdict": found.verdict.name.lower(),
            "verdict_line": verdict_line(capture, found),
            "exit_code": int(found.verdict),
        }
    )


def head(where: Where, capture: Capture, origin: Origin) -> Iterator[str]:
    """What is repeated, line by line: known before anything is computed."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(origin.at))
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items() if version)
    mask = "a tree mask" if capture.visible is not None else "no mask: a chain"
    same = where.library["sha256"] == origin.library.get("sha256")
    yield f"file      {where.file}"
    yield f"made      {when} UTC, {origin.mode}, rank {origin.rank}, {origin.device}"
    yield f"by        {versions}; library {_library_name(origin.library)}"
    yield f"model     {origin.model_path or 'not known'}, {capture.model} layer {capture.layer}"
    yield (
        f"call      request {capture.request} of {capture.batch}: {capture.draft_tokens} draft tokens, {capture.heads} "
        f"heads, prefix {capture.prefix_length}, {_pool(capture)} pool, {mask}"
    )
    yield f"          relative L2 {capture.rel_l2:.2e} from stock (bound {capture.bound:g})"
    yield f"repeated  on {where.device}, by library {_library_name(where.library)}{' (the same)' if same else ''}"
    yield ""


def findings(capture: Capture, reference: Reference, found: Judgement, why_not: str) -> Iterator[str]:
    """What came out, line by line; the verdict is the last. `why_not`: why stock was not repeated."""
    yield f"{'from float64':<28}{'relative L2':>12}{'allowed':>10}{'max abs':>10}{'NaN/Inf':>9}  worst row"
    yield _row("stock, recorded", found.stock, found.stock_limit)
    yield _row("ours, recorded", found.ours, found.ours_limit)
    if found.stock_again is not None:
        yield _row("stock, repeated", found.stock_again, found.stock_limit)
    for each in found.again:
        yield _row(f"ours, repeated ({each.name})", each.distance, found.ours_limit)
    yield ""
    for each in found.again:
        yield _bits(each)
    if found.stock_again is None:
        yield f"stock was not repeated: {why_not}"
    if capture.prefix.element_size() == 1:
        yield (
            f"with this pool stock rounds queries and weights to {_pool(capture).removeprefix('float8_')}: "
            f"that alone is {reference.stock_rounding:.2e} on this call"
        )
    yield f"verdict: {verdict_line(capture, found)}"


def verdict_line(capture: Capture, found: Judgement) -> str:
    """Who was right, in one line."""
    stock = "stock was wrong, too" if found.stock_wrong else "stock was right"
    if found.verdict is Verdict.UNREPEATED:
        return (
            "cannot be repeated: recorded ours was wrong, and the same library computes the recorded inputs rightly; a "
            f"stray write, a race, or an index or mask that was read elsewhere; {stock}"
        )
    if found.verdict is Verdict.STOCK_WRONG:
        return f"stock was wrong: {_off(found.stock, found.stock_limit)}; ours was right"
    if found.verdict is Verdict.RIGHT:
        return f"both within what their arithmetic allows{_why(capture, found)}"
    if not found.ours_wrong:
        names = ", ".join(each.name for each in found.again_wrong)
        worst = max((each.distance for each in found.again_wrong), key=lambda each: (each.nonfinite, each.rel_l2))
        return f"ours is wrong here ({names}): {_off(worst, found.ours_limit)}; recorded ours was right; {stock}"
    if found.again_wrong:
        again = "repeated, it is wrong again"
    else:
        again = "another library than the recorded one repeated it, and is right"
    return f"ours was wrong: {_off(found.ours, found.ours_limit)}; {again}; {stock}"


def _why(capture: Capture, found: Judgement) -> str:
    """What else explains that the call left its bound."""
    if found.between <= capture.bound and capture.batch > 1:
        return f"; the call left its bound in another of its {capture.batch} requests, of which this file holds one"
    if capture.prefix.element_size() == 1:
        return ": stock's roundings to fp8 are what lies between them"
    return ""


def _off(distance: Distance, limit: float) -> str:
    lost = f"{distance.nonfinite} NaN or Inf, " if distance.nonfinite else ""
    return f"{lost}relative L2 {distance.rel_l2:.2e} from float64, where its arithmetic allows {limit:.2e}"


def _row(name: str, distance: Distance, limit: float) -> str:
    worst = f"token {distance.token}, head {distance.head}: {distance.row_rel_l2:.2e}"
    return (
        f"{name:<28}{distance.rel_l2:>12.2e}{limit:>10.2e}{distance.max_abs:>10.2e}{distance.nonfinite:>9}  "
        f"{worst}{'' if distance.within(limit) else '  WRONG'}"
    )


def _bits(again: Again) -> str:
    if again.differing == 0:
        said = "bit for bit what was recorded"
    else:
        said = f"{again.differing} elements differ from what was recorded, by relative L2 {again.from_recorded:.2e}"
    if again.steady is not None:
        said += f"; a second run gave {'the same bits' if again.steady else 'OTHER BITS'}"
    return f"ours ({again.name}): {said}"


def _library_name(library: dict[str, str]) -> str:
    parts = [library.get("version", "?"), library.get("kind", "?"), library.get("archs", "")]
    return f"{' '.join(filter(None, parts))} sha256 {(library.get('sha256') or '?')[:12]}"


def _pool(capture: Capture) -> str:
    return str(capture.prefix.dtype).removeprefix("torch.")
