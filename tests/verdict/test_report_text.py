"""What docs/operating/verdict.md shows and promises is what the report prints and asks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import made
from kdtree_verify.config import from_environment
from kdtree_verify.evidence import files, history
from kdtree_verify.verdict import command, ranges, text, thresholds
from kdtree_verify.verdict.document import Report
from kdtree_verify.verdict.judge import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "operating" / "verdict.md"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("kdtree_verify.verdict.installed.versions", lambda: made.rank_document()["versions"])
    document = made.evidence()
    document["rank"]["shapes"].append(made.cell(4096, 8192, 100 * made.LAYERS))
    other = made.changed(made.evidence(start=made.START - 90_000), setup__sglang="0.5.20")
    other["id"] = "0" * 12
    folder = made.write(tmp_path, document, other)
    found = command.make(folder, from_environment({"KDTREE_LIBRARY_DIR": str(tmp_path / "none")}))
    return replace(found, directory="/var/lib/kdtree")


def test_the_page_shows_what_is_printed(report: Report) -> None:
    (shown,) = re.findall(r"^```text name=report\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert shown == text.text(report)


def test_the_page_names_every_criterion_and_no_other(report: Report) -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What it asks")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.M)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert named == [criterion.name for criterion in report.criteria]


def test_the_pages_numbers_are_the_sources() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for said in (
        f"{thresholds.CALLS_PER_LAYER:,} compared calls",
        f"{thresholds.ACTIVE_SECONDS / 60:.0f} minutes in which calls were compared",
        f"{thresholds.PREFIX_RANGES} ranges of prefix length",
        f"{thresholds.COVERED_SHARE:.0%} of all calls in ranges",
        f"with {thresholds.CALLS_PER_CELL} calls per layer",
        f"at most {thresholds.DECLINED_SHARE:.1%} of the target's verify calls",
        f"at most {thresholds.KERNEL_OVER_STOCK} times as far",
        f"than {thresholds.EXPLAINED_FACTOR:.0f} times both errors",
        f"at most {history.MOST_POINTS} intervals",
        f"{files.FILE_BYTES >> 10} KiB a file",
        f"{files.MOST_FILES:,} files or {files.MOST_BYTES >> 20} MiB",
    ):
        assert said in page


def test_the_pages_exit_codes_are_the_verdicts() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert {name: int(code) for name, code in rows} == {str(verdict): int(verdict.code) for verdict in Verdict}


def test_it_fits_a_terminal(report: Report) -> None:
    assert max(map(len, text.text(report).splitlines())) <= 132


def test_a_model_s_name_does_not_steer_the_terminal(report: Report) -> None:
    setup = replace(report.evidence.setup, model="m\x1b[2J\x07\tn")
    evidence = replace(report.evidence, setup=setup)
    shown = text.text(replace(report, evidence=evidence))
    assert "m?[2J? n" in shown
    assert shown.replace("\n", "").isprintable()


def test_a_draft_s_layer_is_not_the_target_s_of_that_number() -> None:
    assert [ranges.layer(model, 3) for model in ("target", "draft")] == ["layer 3", "draft layer 3"]
