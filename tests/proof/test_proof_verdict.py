"""The verdict finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proof import verdict
from proof.starts import AGAIN, EXACT
from proof_samples import START, TOKENS, answer, rank, run, runs

OTHER = (5, 6, 99, 8, 9, 10)


def test_servers_that_answer_alike_are_right() -> None:
    assert verdict.failures(START, runs()) == []


@pytest.mark.parametrize(
    ("mode", "prompt", "margin", "wrong"),
    [
        ("validate", "alone-16/0", 0.01, True),
        ("validate", "batch-3/1", 0.01, False),
        ("validate", "batch-3/1", 0.4, True),
        ("on", "alone-16/0", 0.01, False),
        ("on", "alone-16/0", 0.4, True),
        ("on", "batch-3/1", 0.4, True),
    ],
)
def test_another_token_is_wrong_but_for_a_near_tie(mode: str, prompt: str, margin: float, wrong: bool) -> None:
    off = run("off", [answer(prompt, margin=margin)])
    others = {name: run(name, [answer(prompt)]) for name in ("validate", "on")}
    others[mode] = run(mode, [answer(prompt, tokens=OTHER)])
    found = verdict.failures(START, {"off": off, **others})
    assert found == ([f"{mode}: token 2 of {prompt} is not off's, which led by {margin:.3f}"] if wrong else [])


@pytest.mark.parametrize(("margin", "wrong"), [(0.4, False), (0.6, True)])
def test_with_an_fp8_cache_on_is_held_against_float32_and_not_against_stock(margin: float, wrong: bool) -> None:
    start = replace(START, kv_dtype="fp8_e4m3")
    stock = [answer("alone-16/0", tokens=OTHER, margin=2.0)]  # which rounds Q and P
    exact = run("off", [answer("alone-16/0", margin=margin)])
    others = {"off": run("off", stock), "validate": run("validate", stock), EXACT: exact}
    assert verdict.failures(start, {**others, "on": run("on", [answer("alone-16/0")])}) == []
    third = (5, 6, 7, 11, 9, 10)
    found = verdict.failures(start, {**others, "on": run("on", [answer("alone-16/0", tokens=third)])})
    assert found == (["on: token 3 of alone-16/0 is not exact's, which led by 0.600"] if wrong else [])


def test_stock_that_parts_from_itself_is_told() -> None:
    off, again = (run("off", [answer("alone-16/0", tokens=tokens)]) for tokens in (TOKENS, OTHER))
    found = verdict.failures(
        replace(START, twice=True),
        {"off": off, AGAIN: again, "validate": run("validate", off.answers), "on": run("on", off.answers)},
    )
    assert "off-again: token 2 of alone-16/0 is not off's, which led by 1.000" in found


def layers(**changes: Any) -> dict[str, Any]:
    (layer,) = rank("validate")["layers"]
    return {"layers": [layer | changes]}


@pytest.mark.parametrize(
    ("mode", "changes", "words"),
    [
        ("on", {"state": "failed"}, "is failed in mode on"),
        ("on", {"counters": {"declined": {"mask": 3}, "out_of_range": 0}}, "declined {'mask': 3}"),
        ("validate", {"counters": {"declined": {}, "out_of_range": 2}}, "2 out of range"),
        ("on", {"layers": []}, "did not run in each layer"),
        ("on", layers(calls=0), "did not run in each layer"),
        ("validate", layers(exceeded_calls=1), "1 beyond the bound"),
        ("validate", layers(nonfinite=4), "4 NaN"),
        ("validate", layers(worst_rel_l2=0.0), "worst relative difference 0,"),
        ("validate", layers(worst_rel_l2=float("nan")), "worst relative difference nan,"),
    ],
)
def test_figures_are_looked_at(mode: str, changes: dict[str, Any], words: str) -> None:
    (found,) = verdict.failures(START, runs(**{mode: run(mode, **changes)}))
    assert found.startswith(f"{mode}: ")
    assert words in found


def test_each_rank_tells_of_itself() -> None:
    assert verdict.failures(replace(START, tp=2), runs()) == [
        "validate: 1 ranks tell of themselves, not 2",
        "on: 1 ranks tell of themselves, not 2",
    ]


def test_a_server_that_verified_no_tree_proves_nothing() -> None:
    found = verdict.failures(
        START, runs(on=run("on", [answer("alone-16/0", verify_calls=0), answer("batch-3/1", verify_calls=0)]))
    )
    assert found == ["on: no tree was verified"]


@pytest.mark.parametrize(("on_steps", "words"), [(1000, None), (1020, None), (700, "accept length"), (300, "too few")])
def test_accept_lengths_stay_within_stocks_spread(on_steps: int, words: str | None) -> None:
    def of(mode: str, steps: int) -> verdict.Run:
        return run(mode, [answer("alone-16/0", tokens=TOKENS * 300, verify_calls=steps)])

    start = replace(START, twice=True)
    found = verdict.failures(
        start,
        {"off": of("off", 1000), "validate": of("validate", 1000), AGAIN: of("off", 1010), "on": of("on", on_steps)},
    )
    assert (found == []) if words is None else (len(found) == 1 and words in found[0])
