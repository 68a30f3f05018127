"""What the demo makes of the ranks' reports, and what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demo import report
from demo.conversation import Answer
from demo.verdict import Figures, Run

ANSWER = Answer("a b c", "d e", tokens=(5, 6), margins=(2.0, 0.1), verify_calls=3)
FIGURES = Figures(verify_calls=3, kernel_calls=6, declined={}, max_abs=0.01, rel_l2=0.002)
RUNS = {mode: Run([ANSWER], FIGURES) for mode in ("off", "validate", "on")}


def rank(kernel_calls: int, declined: dict[str, int], *layers: dict[str, Any]) -> dict[str, Any]:
    return {"counters": {"kernel_calls": kernel_calls, "declined": declined}, "layers": list(layers)}


def layer(compare_calls: int, max_abs: float, worst_rel_l2: float) -> dict[str, Any]:
    return {"compare_calls": compare_calls, "max_abs": max_abs, "worst_rel_l2": worst_rel_l2}


def test_figures_add_up_over_ranks_and_take_the_worst_layer() -> None:
    ranks = [
        rank(4, {"head_dim": 1}, layer(2, 0.5, 0.001), layer(2, 0.1, 0.003)),
        rank(4, {"head_dim": 2, "dcp": 5}, layer(2, 0.2, 0.002)),
    ]
    found = report.figures([ANSWER, replace(ANSWER, verify_calls=4)], ranks)
    assert found == Figures(
        verify_calls=7, kernel_calls=8, declined={"dcp": 5, "head_dim": 3}, max_abs=0.5, rel_l2=0.003
    )


def test_nothing_compared_is_no_difference_of_zero() -> None:
    found = report.figures([ANSWER], [rank(4, {}, layer(0, 0.0, 0.0))])
    assert (found.max_abs, found.rel_l2) == (None, None)


def test_off_counts_nothing() -> None:
    found = report.figures([ANSWER], [{"counters": None, "layers": []}])
    assert found == Figures(verify_calls=3, kernel_calls=0, declined={}, max_abs=None, rel_l2=None)


@pytest.mark.parametrize(("tokens", "equal"), [((5, 6), True), ((5, 7), False)])
def test_the_document_has_the_documented_fields(tmp_path: Path, tokens: tuple[int, ...], equal: bool) -> None:
    runs = RUNS | {"on": Run([replace(ANSWER, tokens=tokens)], FIGURES)}
    report.write(tmp_path / "demo.json", runs, 12.34, {"base_bytes": 1000, "added_bytes": 24, "tag": "t"})
    document = json.loads((tmp_path / "demo.json").read_text())
    assert document.keys() == {"outputs_equal", "modes", "seconds", "image_bytes"}
    assert document["outputs_equal"] is equal
    assert document["seconds"] == 12.3
    assert document["image_bytes"] == {"image": 1024, "base": 1000, "added": 24}
    fields = {"verify_calls", "kernel_calls", "declined", "max_abs", "rel_l2"}
    assert {mode: figures.keys() for mode, figures in document["modes"].items()} == dict.fromkeys(RUNS, fields)


def test_each_answer_is_shown_once_and_a_difference_beneath_it() -> None:
    assert report.answers(RUNS).splitlines() == ["  a b c", "    -> d e"]
    differing = RUNS | {"on": Run([replace(ANSWER, tokens=(5, 9), text="d f")], FIGURES)}
    assert report.answers(differing).splitlines()[2:] == [
        "    on says d f: token 1 differs, off's led by 0.100, a near-tie"
    ]


def test_the_table_has_a_row_a_mode() -> None:
    rows = report.table(RUNS | {"off": Run([ANSWER], replace(FIGURES, max_abs=None, rel_l2=None))}).splitlines()
    assert [row.split()[0] for row in rows] == ["mode", "off", "validate", "on"]
    assert rows[1].split()[1:] == ["1", "3", "6", "none", "-", "-"]
