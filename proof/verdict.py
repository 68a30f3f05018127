"""Whether the servers of one configuration answered as they must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.verdict import NEAR_TIE, Difference, differences

from .dialogue import Answer
from .starts import AGAIN, EXACT, Start

NEAR_TIE_FP8 = 0.5
"""Logits, between two servers that do not round Q and P to fp8: a last bit of what a layer is given may still put an
element that is stored to another of fp8's few numbers."""
LEAST_VERIFY_STEPS = 500
"""Before an accept length is compared."""
LEAST_SPREAD = 0.03
"""Of an accept length, relative: off against off is one pair of servers and may agree by chance."""


@dataclass(frozen=True)
class Run:
    """What one server said and counted: its answers, and the ranks' state files after them."""

    answers: Sequence[Answer]
    ranks: Mapping[str, Any]


def accept_length(answers: Sequence[Answer]) -> float:
    """Tokens of a verify step and request."""
    steps = sum(answer.verify_calls for answer in answers)
    return sum(len(answer.tokens) for answer in answers) / steps if steps else 0.0


def failures(start: Start, runs: Mapping[str, Run]) -> list[str]:
    """What is wrong with the runs of the configuration's modes, one line each."""
    off, validate, on = runs["off"], runs["validate"], runs["on"]
    wrong = []
    for found in differences(off.answers, validate.answers):
        # A request alone meets the same batches in each server; several at once may be batched otherwise.
        if found.prompt.startswith("alone-") or found.margin > NEAR_TIE:
            wrong.append(_another("validate", found, "off"))
    if AGAIN in runs:
        wrong += [_another(AGAIN, d, "off") for d in differences(off.answers, runs[AGAIN].answers) if not d.near_tie]
    reference, tie = (EXACT, NEAR_TIE_FP8) if start.fp8 else ("off", NEAR_TIE)
    wrong += [
        _another("on", found, reference)
        for found in differences(runs[reference].answers, on.answers)
        if found.margin > tie
    ]
    wrong += [f"{mode}: no tree was verified" for mode, run in runs.items() if accept_length(run.answers) == 0.0]
    wrong += counted(start, "validate", validate) + counted(start, "on", on)
    if AGAIN in runs:
        wrong += _accept_lengths(off.answers, runs[AGAIN].answers, on.answers)
    return wrong


def _another(mode: str, found: Difference, reference: str) -> str:
    return f"{mode}: token {found.position} of {found.prompt} is not {reference}'s, which led by {found.margin:.3f}"


def counted(start: Start, mode: str, run: Run) -> list[str]:
    """What is wrong with the figures that the ranks of a patched server show."""
    wrong = []
    if len(run.ranks) != start.tp:
        wrong.append(f"{mode}: {len(run.ranks)} ranks tell of themselves, not {start.tp}")
    for name, rank in run.ranks.items():
        counters, layers = rank["counters"], rank["layers"]
        if rank["mode"] != mode or rank["state"] != "serving":
            wrong.append(f"{mode}: {name} is {rank['state']} in mode {rank['mode']}")
        if counters["declined"] or counters["out_of_range"]:
            wrong.append(f"{mode}: {name} declined {counters['declined']}, {counters['out_of_range']} out of range")
        if not layers or any(layer["calls"] == 0 for layer in layers):
            wrong.append(f"{mode}: {name}: the kernel did not run in each layer")
        if mode != "validate":
            continue
        for layer in layers:
            figures = (
                f"{layer['worst_rel_l2']:.3g}, {layer['exceeded_calls']} beyond the bound, {layer['nonfinite']} NaN"
            )
            if layer["exceeded_calls"] or layer["nonfinite"] or not 0 < layer["worst_rel_l2"] < 1:
                wrong.append(f"validate: {name} layer {layer['layer']}: worst relative difference {figures}")
    return wrong


def _accept_lengths(off: Sequence[Answer], again: Sequence[Answer], on: Sequence[Answer]) -> list[str]:
    first, second, ours = accept_length(off), accept_length(again), accept_length(on)
    steps = sum(answer.verify_calls for answer in on)
    if steps < LEAST_VERIFY_STEPS:
        return [f"on: {steps} verify steps are too few to compare accept lengths by, {LEAST_VERIFY_STEPS} are not"]
    allowed = max(abs(first - second), LEAST_SPREAD * first)
    if min(abs(ours - first), abs(ours - second)) > allowed:
        return [f"on: accept length {ours:.3f}, off's are {first:.3f} and {second:.3f}"]
    return []
