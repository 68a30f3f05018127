"""What README states as a table is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdtree_verify import cli
from kdtree_verify.config import Mode
from kdtree_verify.errors import ExitCode

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below a heading, up to the next."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", README, re.M | re.S)
    assert match, f"README has no section {title!r}"
    return match[1]


def first_cells(table: str) -> list[str]:
    return re.findall(r"^\| ([^|]*?) \|", table, re.M)[1:]


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for cell in first_cells(section("Exit codes")) for code in re.findall(r"\d+", cell)}
    assert {int(code) for code in ExitCode} - {0} <= documented


def test_every_exit_code_of_the_command_is_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = set(map(int, re.findall(r"^  (\d+) ", capsys.readouterr().out, re.M)))
    assert {int(code) for code in ExitCode} <= told


def test_the_modes_are_the_codes() -> None:
    assert [cell.split("`")[1] for cell in first_cells(section("Modes"))] == [mode.value for mode in Mode]


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_a_link_into_the_repository_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
