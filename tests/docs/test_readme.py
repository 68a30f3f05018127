"""What README states as a table is what the code does."""

from __future__ import annotations

import re

import pytest

import documents
from kdtree_verify import cli
from kdtree_verify.config import Mode
from kdtree_verify.errors import ExitCode

README = documents.ROOT / "README.md"


def first_cells(title: str) -> list[str]:
    return [row[0] for row in documents.rows(documents.section(README, title))]


def test_every_exit_code_is_documented_and_no_other_refusal() -> None:
    documented = {int(code) for cell in first_cells("Exit codes") for code in re.findall(r"\d+", cell)}
    assert {int(code) for code in ExitCode} - {0} <= documented
    # Below these a command's own verdicts, above them the shell's and signals'.
    assert {code for code in documented if 64 <= code < 126} == {code for code in ExitCode if code >= ExitCode.USAGE}


def test_every_exit_code_of_the_command_is_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = set(map(int, re.findall(r"^  (\d+) ", capsys.readouterr().out, re.M)))
    assert {int(code) for code in ExitCode} <= told


def test_the_modes_are_the_codes() -> None:
    assert [cell.split("`")[1] for cell in first_cells("Modes")] == [mode.value for mode in Mode]
