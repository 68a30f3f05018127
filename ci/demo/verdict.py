"""Whether the three modes answered as they must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .conversation import Answer

NEAR_TIE = 0.125
"""Logits. SGLang's are bf16, and the model's leading ones lie between 8 and 16, where a bf16 step is 0.0625: two
logits closer than two steps change places by rounding alone."""

LARGEST_REL_L2 = 2.0**-7
"""Two bf16 steps at worst, one typically: stock rounds its probabilities to bf16 before it multiplies by V, the host
library does not, and both round the result."""


@dataclass(frozen=True)
class Figures:
    """What one mode did. Differences are from stock's output of the same calls; None where nothing was compared.

    Attributes:
        verify_calls: SGLang's own spec_verify_ct, summed over the answers.
        kernel_calls: Calls that ran the kernel, over all ranks and layers.
        declined: Verify calls that stock ran instead, by reason.
        max_abs: The largest difference of any element.
        rel_l2: The worst layer's relative L2 difference.
    """

    verify_calls: int
    kernel_calls: int
    declined: Mapping[str, int]
    max_abs: float | None
    rel_l2: float | None


@dataclass(frozen=True)
class Run:
    """One mode's answers and figures, what `kdtree status` said then, and `kdtree report` of validate's."""

    answers: Sequence[Answer]
    figures: Figures
    report: str | None = None
    status: str = ""


class Answered(Protocol):
    """What of an answer is compared; conversation.Answer's fields."""

    @property
    def prompt(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def margins(self) -> Sequence[float]: ...


@dataclass(frozen=True)
class Difference:
    """Where two answers part.

    Attributes:
        prompt: Whose answers.
        position: Index of the first token that differs.
        margin: By how much the reference's token led there, in logits.
    """

    prompt: str
    position: int
    margin: float

    @property
    def near_tie(self) -> bool:
        return self.margin <= NEAR_TIE


def differences(reference: Sequence[Answered], other: Sequence[Answered]) -> list[Difference]:
    """Where each pair of answers to one prompt first differs; what follows the first token is another text."""
    found = []
    for ours, theirs in zip(reference, other, strict=True):
        for position, (a, b) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
            if a != b:
                found.append(Difference(ours.prompt, position, ours.margins[position]))
                break
    return found


def failures(runs: Mapping[str, Run]) -> list[str]:
    """What is wrong with the runs of "off", "validate" and "on", one line each; empty where nothing is."""
    off, validate, on = runs["off"], runs["validate"], runs["on"]
    wrong = [
        f"validate: token {d.position} of the answer to {d.prompt!r} is not off's: stock's answer was not returned"
        for d in differences(off.answers, validate.answers)
    ]
    wrong += [
        f"on: token {d.position} of the answer to {d.prompt!r} is not off's, which led by {d.margin:.3f}: no near-tie"
        for d in differences(off.answers, on.answers)
        if not d.near_tie
    ]
    wrong += [f"{mode}: no tree was verified" for mode, run in runs.items() if run.figures.verify_calls == 0]
    wrong += [f"{mode}: the kernel did not run" for mode in ("validate", "on") if runs[mode].figures.kernel_calls == 0]
    if off.figures.kernel_calls:
        wrong.append(f"off: the kernel ran {off.figures.kernel_calls} times")
    rel_l2 = validate.figures.rel_l2
    if rel_l2 is None or not rel_l2 <= LARGEST_REL_L2:
        wrong.append(f"validate: the relative difference is {rel_l2}, not within bf16's ({LARGEST_REL_L2:.4f})")
    return wrong
