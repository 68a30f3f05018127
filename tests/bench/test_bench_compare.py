"""ci/bench compare: a run held to the record of its card."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.compare import compare
from kdtree_verify.errors import UsageError

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "benchmark"
Change = Callable[[dict[str, Any]], None]


def results(folder: Path, change: Change, *, section: str = "table") -> Path:
    """The recorded run of the H200, with one thing changed."""
    document = json.loads((RECORDS / "h200.json").read_text())
    document["sections"] = {section: document["sections"][section]}
    change(document["sections"][section])
    path = folder / "new.json"
    path.write_text(json.dumps(document))
    return path


def scaled(by: float, first: int | None = None) -> Change:
    def change(run: dict[str, Any]) -> None:
        for row in run["rows"][:first]:
            row["times"]["kdtree"]["us"] *= by

    return change


def other_card(run: dict[str, Any]) -> None:
    run["hardware"]["name"] = "NVIDIA RTX PRO 6000 Blackwell"


def less_exact(run: dict[str, Any]) -> None:
    run["rows"][0]["times"]["kdtree"]["error"] *= 1.2


def refused(run: dict[str, Any]) -> None:
    run["rows"][0]["times"]["kdtree"] = {"status": "wrong"}


def newer(run: dict[str, Any]) -> None:
    run["versions"]["driver"] = "595.1"


@pytest.mark.parametrize(
    ("change", "worse"),
    [
        (scaled(1.0), []),
        (scaled(0.5), []),
        (scaled(1.02), []),
        (scaled(1.04), ["slower together"]),
        (scaled(1.2, first=10), ["slower: ", "slower together"]),
        (less_exact, ["less exact"]),
        (refused, ["not timed now"]),
    ],
)
def test_what_is_worse_than_recorded_is_told(tmp_path: Path, change: Change, worse: list[str]) -> None:
    _, found = compare(results(tmp_path, change), RECORDS)
    assert all(any(word in line for line in found) for word in worse), found
    assert all(any(word in line for word in worse) for line in found), found


def test_one_slow_cell_among_many_is_told(tmp_path: Path) -> None:
    _, found = compare(results(tmp_path, scaled(1.3, first=1), section="grid"), RECORDS)
    assert len(found) == 1
    assert "slower: " in found[0]


def test_a_short_call_may_jitter(tmp_path: Path) -> None:
    """By a microsecond, though that is more than a tenth of it."""

    def first(us: float) -> Change:
        def change(run: dict[str, Any]) -> None:
            run["rows"][0]["times"]["kdtree"]["us"] = us

        return change

    records = tmp_path / "records"
    records.mkdir()
    results(records, first(5.0), section="grid")
    _, found = compare(results(tmp_path, first(5.9), section="grid"), records)
    assert found == []
    _, found = compare(results(tmp_path, first(6.1), section="grid"), records)
    assert len(found) == 1
    assert "slower: 5.00 -> 6.10 us" in found[0]


def test_the_first_run_on_a_card_has_no_record(tmp_path: Path) -> None:
    told, worse = compare(results(tmp_path, other_card), RECORDS)
    assert worse == []
    assert "no record for this card, NVIDIA RTX PRO 6000 Blackwell" in told[0]


def test_another_driver_is_said(tmp_path: Path) -> None:
    told, worse = compare(results(tmp_path, newer), RECORDS)
    assert worse == []
    assert any("driver was 580.159.04, is 595.1" in line for line in told)


def test_no_results_are_no_success(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        compare(tmp_path / "none.json", RECORDS)
    (tmp_path / "empty.json").write_text('{"schema": 1, "sections": {}}')
    with pytest.raises(UsageError):
        compare(tmp_path / "empty.json", RECORDS)


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    path = results(tmp_path, scaled(1.2))
    command = [ROOT / "ci" / "bench", "compare", path]
    plain = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, timeout=60)
    assert plain.returncode == 1
    assert plain.stderr.startswith("kdtree: worse than recorded: table: ")
