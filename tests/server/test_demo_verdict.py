"""The demo's verdict: which runs of off, validate and on pass, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo import model
from demo.conversation import REQUESTS, Answer
from demo.verdict import LARGEST_REL_L2, NEAR_TIE, Difference, Figures, Run, differences, failures

ANSWER = Answer("a prompt", "an answer", tokens=(5, 6, 7), margins=(2.0, NEAR_TIE, 1.0), verify_calls=3)
WITHOUT = Figures(verify_calls=3, kernel_calls=0, declined={}, max_abs=None, rel_l2=None)
ON = replace(WITHOUT, kernel_calls=6)
VALIDATE = replace(ON, max_abs=0.01, rel_l2=LARGEST_REL_L2 / 4)
GOOD = {"off": Run([ANSWER], WITHOUT), "validate": Run([ANSWER], VALIDATE), "on": Run([ANSWER], ON)}


def answering(*tokens: int) -> list[Answer]:
    return [replace(ANSWER, tokens=tokens)]


def test_equal_answers_within_bf16_pass() -> None:
    assert failures(GOOD) == []


def test_validate_must_answer_exactly_as_off_even_at_a_near_tie() -> None:
    (line,) = failures(GOOD | {"validate": Run(answering(5, 9, 7), VALIDATE)})
    assert line.startswith("validate: token 1")


def test_on_may_differ_from_off_at_a_near_tie_and_after_it() -> None:
    assert failures(GOOD | {"on": Run(answering(5, 9, 9), ON)}) == []


def test_on_may_not_differ_from_off_elsewhere() -> None:
    (line,) = failures(GOOD | {"on": Run(answering(4, 6, 7), ON)})
    assert line.startswith("on: token 0")
    assert "2.000" in line


@pytest.mark.parametrize("mode", list(GOOD))
def test_a_tree_must_have_been_verified(mode: str) -> None:
    idle = Run(GOOD[mode].answers, replace(GOOD[mode].figures, verify_calls=0))
    assert failures(GOOD | {mode: idle}) == [f"{mode}: no tree was verified"]


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_the_kernel_must_have_run(mode: str) -> None:
    idle = Run(GOOD[mode].answers, replace(GOOD[mode].figures, kernel_calls=0))
    assert failures(GOOD | {mode: idle}) == [f"{mode}: the kernel did not run"]


def test_off_must_not_have_run_the_kernel() -> None:
    assert failures(GOOD | {"off": Run([ANSWER], replace(WITHOUT, kernel_calls=1))}) == ["off: the kernel ran 1 times"]


@pytest.mark.parametrize("rel_l2", [None, float("nan"), LARGEST_REL_L2 * 1.01])
def test_the_difference_must_be_known_and_within_bf16s(rel_l2: float | None) -> None:
    (line,) = failures(GOOD | {"validate": Run([ANSWER], replace(VALIDATE, rel_l2=rel_l2))})
    assert "not within bf16's" in line


def test_answers_part_once_and_at_their_first_difference() -> None:
    assert differences([ANSWER], answering(5, 8, 8)) == [Difference("a prompt", 1, NEAR_TIE)]


def test_every_word_of_the_prompts_is_a_token() -> None:
    words = {word for prompts, _ in REQUESTS for prompt in prompts for word in prompt.split()}
    assert words <= set(model.vocabulary())


def test_the_vocabulary_has_no_word_twice() -> None:
    assert len(set(model.vocabulary())) == model.VOCAB == len(model.vocabulary())
