"""The file of results: kept whole, gone on with where it is of the same kernel and card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cells import LONG
from bench.results import Results, finished
from bench_samples import TINY, a_row, a_run
from kdtree_verify.errors import UsageError


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "h200.json"
    first = Results(path)
    first.begin("grid", a_run([]))["rows"].append(a_row(TINY, kdtree=1.0))
    first.save()
    again = Results(path).begin("grid", a_run([]))
    assert finished(again) == {TINY.key}


@pytest.mark.parametrize(
    "changed", [{"library": {"source_hash": "other"}}, {"hardware": {"name": "other"}}, {"versions": {"sglang": "1"}}]
)
def test_another_kernel_card_or_peer_begins_anew(tmp_path: Path, changed: dict[str, object]) -> None:
    results = Results(tmp_path / "x.json")
    results.begin("grid", a_run([a_row(TINY, kdtree=1.0)]))
    results.save()
    again = Results(tmp_path / "x.json").begin("grid", a_run([], **changed))
    assert not finished(again)


def test_a_row_is_a_line(tmp_path: Path) -> None:
    results = Results(tmp_path / "x.json")
    rows = [a_row(TINY, kdtree=1.0), a_row(LONG, kdtree=2.0)]
    results.begin("table", a_run(rows, small=[]))
    results.begin("grid", a_run(rows))
    results.save()
    text = results.path.read_text()
    assert sum(TINY.key in line and line.endswith("},") for line in text.splitlines()) == 2
    assert json.loads(text)["sections"] == results.sections


def test_sections_do_not_touch_each_other(tmp_path: Path) -> None:
    results = Results(tmp_path / "x.json")
    results.begin("table", a_run([a_row(TINY, kdtree=1.0)]))
    results.begin("grid", a_run([]))
    results.save()
    assert set(Results(tmp_path / "x.json").sections) == {"table", "grid"}


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": 0}', json.dumps({"schema": 1, "sections": {"table": {"rows": []}}})]
)
def test_what_is_not_a_file_of_results_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"x\.json"):
        Results(path)
