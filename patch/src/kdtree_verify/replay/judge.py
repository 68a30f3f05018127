"""Who is right: each answer's distance from float64, and what follows from all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import torch

from .capture import Capture
from .origin import Origin
from .reference import Reference
from .repeat import Repeated, same_bits


class Verdict(IntEnum):
    """What a replay found; the values are its exit codes."""

    RIGHT = 0
    """Neither was wrong: what lies between them is their arithmetic's."""
    OURS_WRONG = 1
    STOCK_WRONG = 2
    BOTH_WRONG = 3
    UNREPEATED = 4
    """Recorded ours was wrong, and the same library computes the recorded inputs rightly."""


@dataclass(frozen=True)
class Distance:
    """One answer against float64.

    Attributes:
        rel_l2: ||answer - exact|| / ||exact|| over the elements that are finite in the answer.
        max_abs: Largest |answer - exact| of these.
        nonfinite: Elements NaN or Inf where the exact value is a finite number of the answer's dtype.
        token, head: The row that is furthest off, by its own relative L2.
        row_rel_l2: That row's; inf where it holds NaN or Inf, or something where zeros are right.
    """

    rel_l2: float
    max_abs: float
    nonfinite: int
    token: int
    head: int
    row_rel_l2: float

    def within(self, limit: float) -> bool:
        return self.nonfinite == 0 and self.rel_l2 <= limit


@dataclass(frozen=True)
class Again:
    """One way in which ours was repeated.

    Attributes:
        name: The variant's.
        distance: Its answer against float64.
        differing: Elements whose bits are not those of recorded ours.
        from_recorded: ||repeated - recorded|| / ||recorded||; inf where one has NaN or Inf and the other has not.
        steady: Whether a second run gave the same bits; None where there was none.
    """

    name: str
    distance: Distance
    differing: int
    from_recorded: float
    steady: bool | None


@dataclass(frozen=True)
class Judgement:
    """All that a replay found.

    Attributes:
        stock, ours: The recorded answers against float64.
        stock_again: SGLang's kernel here; None where it was not run.
        again: Ours, repeated by the library here: one entry a variant.
        same_library: Whether that library is the one that recorded ours, to the byte.
        stock_limit, ours_limit: Relative L2 up to which their arithmetic explains a distance.
        between: ||ours - stock|| / ||stock|| of the recorded answers of this request.
    """

    stock: Distance
    ours: Distance
    stock_again: Distance | None
    again: list[Again]
    same_library: bool
    stock_limit: float
    ours_limit: float
    between: float

    @property
    def stock_wrong(self) -> bool:
        return not self.stock.within(self.stock_limit)

    @property
    def ours_wrong(self) -> bool:
        return not self.ours.within(self.ours_limit)

    @property
    def again_wrong(self) -> list[Again]:
        """Those of the repeated that are wrong."""
        return [each for each in self.again if not each.distance.within(self.ours_limit)]

    @property
    def unsteady(self) -> list[Again]:
        """Those of which two runs differ."""
        return [each for each in self.again if each.steady is False]

    @property
    def verdict(self) -> Verdict:
        if self.ours_wrong and self.same_library and not self.again_wrong:
            return Verdict.UNREPEATED
        ours_wrong = self.ours_wrong or bool(self.again_wrong)
        if ours_wrong and self.stock_wrong:
            return Verdict.BOTH_WRONG
        if ours_wrong:
            return Verdict.OURS_WRONG
        return Verdict.STOCK_WRONG if self.stock_wrong else Verdict.RIGHT


def judge(
    capture: Capture,
    origin: Origin,
    reference: Reference,
    library: dict[str, str],
    repeated: list[Repeated],
    stock_again: torch.Tensor | None,
) -> Judgement:
    """`library` is the one that repeated, as Origin.library has it."""
    exact = reference.exact
    return Judgement(
        stock=distance(capture.stock, exact),
        ours=distance(capture.ours, exact),
        stock_again=None if stock_again is None else distance(stock_again, exact),
        again=[_again(each, capture, exact) for each in repeated],
        same_library=library["sha256"] == origin.library.get("sha256"),
        stock_limit=reference.stock_limit,
        ours_limit=reference.ours_limit,
        between=relative(capture.ours, capture.stock.double()),
    )


def distance(answer: torch.Tensor, exact: torch.Tensor) -> Distance:
    """`answer` [T, H, 512] in bf16 or float32 against `exact` in float64."""
    finite = answer.isfinite()
    lost = ~finite & exact.to(answer.dtype).isfinite()
    error = torch.where(finite, answer.double() - exact, 0.0)
    rows = error.norm(dim=-1) / exact.norm(dim=-1)
    rows = rows.nan_to_num(nan=0.0, posinf=math.inf)  # 0 of 0: zeros where zeros are right
    rows = rows.masked_fill(lost.any(-1), math.inf)
    token, head = divmod(int(rows.argmax()), rows.shape[1])
    return Distance(
        rel_l2=_ratio(error.norm(), exact.norm()),
        max_abs=float(error.abs().max()),
        nonfinite=int(lost.sum()),
        token=token,
        head=head,
        row_rel_l2=float(rows[token, head]),
    )


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b|| over the elements that are finite in both; inf where one alone is not."""
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return math.inf
    a, b = a.double()[finite], b.double()[finite]
    return _ratio((a - b).norm(), b.norm())


def _again(repeated: Repeated, capture: Capture, exact: torch.Tensor) -> Again:
    width = repeated.out.element_size()
    bits = [tensor.contiguous().view(torch.uint8).unflatten(-1, (-1, width)) for tensor in (repeated.out, capture.ours)]
    return Again(
        name=repeated.name,
        distance=distance(repeated.out, exact),
        differing=0 if same_bits(repeated.out, capture.ours) else int((bits[0] != bits[1]).any(-1).sum()),
        from_recorded=relative(repeated.out, capture.ours.double()),
        steady=repeated.steady,
    )


def _ratio(a: torch.Tensor, b: torch.Tensor) -> float:
    if float(b) == 0:
        return 0.0 if float(a) == 0 else math.inf
    return float(a / b)
