"""Which of the kept answers count, and what is read off them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from proof import dialogue, summary
from proof.results import Identity, Results, identity_in, questions_of
from proof_samples import START, TOKENS, answer

IDENTITY = Identity("kernel", "patch", "questions", "0.0", "no card")


def test_answers_of_another_kernel_or_other_settings_do_not_count(tmp_path: Path) -> None:
    Results(tmp_path, IDENTITY).save(START, "off", {"answers": [], "ranks": {}})
    assert Results(tmp_path, IDENTITY).has(START, "off")
    assert not Results(tmp_path, replace(IDENTITY, kernel="another")).has(START, "off")
    # The same name: what a start's name leaves out.
    assert not Results(tmp_path, IDENTITY).has(replace(START, graph_batch=START.graph_batch + 1), "off")


def test_a_folders_identity_is_its_newest_answers(tmp_path: Path) -> None:
    newer = replace(IDENTITY, kernel="newer")
    for number, (mode, identity) in enumerate((("off", newer), ("on", IDENTITY))):
        Results(tmp_path, identity).save(START, mode, {})
        os.utime(Results(tmp_path, identity).path(START, mode), (100 - number, 100 - number))
    assert identity_in(tmp_path) == newer


def test_other_requests_and_other_models_are_other_questions() -> None:
    asked = dialogue.requests(1000)
    assert len({questions_of(asked, "model"), questions_of(asked[1:], "model"), questions_of(asked, "other")}) == 3


def test_noise_is_of_what_comes_before_answers_part() -> None:
    reference = [answer("alone-16/0", margin=1.0)]
    other = replace(
        answer("alone-16/0", tokens=(*TOKENS[:3], 99, *TOKENS[4:])), margins=(1.0, 1.25, 0.5, 9.0, 9.0, 9.0)
    )
    found = summary.parting(reference, [other])
    assert (found.parted, found.answers, found.greatest_lead) == (1, 1, 1.0)
    assert found.noise == pytest.approx(0.5)
