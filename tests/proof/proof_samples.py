"""Servers' runs as the verdict's tests want them."""

from __future__ import annotations

from typing import Any

from proof.dialogue import Answer
from proof.starts import Start
from proof.verdict import Run

START = Start(8, 8, "NGRAM", 4)
TOKENS = (5, 6, 7, 8, 9, 10)


def answer(prompt: str, *, tokens: tuple[int, ...] = TOKENS, margin: float = 1.0, verify_calls: int = 3) -> Answer:
    return Answer(prompt, tokens, (margin,) * len(tokens), verify_calls)


def rank(mode: str, **changes: Any) -> dict[str, Any]:
    layer = {"layer": 0, "calls": 9, "worst_rel_l2": 2e-3, "exceeded_calls": 0, "nonfinite": 0}
    counters = {"declined": {}, "out_of_range": 0}
    return {"mode": mode, "state": "serving", "counters": counters, "layers": [layer]} | changes


def run(mode: str, answers: list[Answer] | None = None, **changes: Any) -> Run:
    if answers is None:
        answers = [answer("alone-16/0"), answer("batch-3/1")]
    return Run(answers, {"dp0-pp0-tp0": rank(mode, **changes)})


def runs(**changed: Run) -> dict[str, Run]:
    return {mode: run(mode) for mode in ("off", "validate", "on")} | changed
