"""docs/supply-chain/pins.md: its table is what the contract check says, its commands are those that there are."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pinning import cli, mirror, releases
from pinning.releases import Verdict

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "supply-chain" / "pins.md").read_text()


def commands() -> list[list[str]]:
    """Every line of the page's shell blocks."""
    return [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return releases.check_all()


def test_the_table_is_what_the_check_says(verdicts: list[Verdict]) -> None:
    assert [verdict.row for verdict in verdicts] == re.findall(r"^\| \d+\.\d+\.\d+ \|.*$", PAGE, re.M)


def test_what_is_tested_is_supported(verdicts: list[Verdict]) -> None:
    supported = {verdict.sglang for verdict in verdicts if verdict.reason is None}
    assert set(releases.lockfile.load()["sglang"]["tested"]) <= supported


def test_a_server_with_a_release_that_is_refused_ends_before_it_starts(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        (unpacked,) = releases.UNPACKED.glob(f"{verdict.sglang}-*")
        done = subprocess.run(
            [sys.executable, "-m", "kdtree_verify.preflight"],
            env=os.environ | {"PYTHONPATH": str(unpacked)},
            capture_output=True,
            text=True,
        )
        line = f"kdtree: {verdict.reason}. Fix: use an SGLang that this release was tested with (0.5.21, 0.5.23), or "
        assert (done.returncode, done.stderr[: len(line)]) == ((78, line) if verdict.reason else (0, ""))


def test_the_contract_is_a_command_that_prints_the_table() -> None:
    done = subprocess.run([ROOT / "ci" / "pins", "contract"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(row in PAGE for row in done.stdout.splitlines())


def test_a_package_folder_that_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "ci" / "pins", "contract", tmp_path], capture_output=True, text=True)
    assert done.returncode == 78
    assert "triton_backend cannot be read" in done.stdout


def test_every_command_of_the_page_is_one() -> None:
    assert cli.__doc__
    assert mirror.__doc__
    ours = [words for words in commands() if words[0].startswith("ci/")]
    for program, *arguments in ours:
        assert os.access(ROOT / program, os.X_OK)
        if program == "ci/pins":
            assert f"ci/pins {arguments[0]} " in cli.__doc__
            assert all(option in cli.__doc__ for option in arguments if option.startswith("-"))
    assert {words[0] for words in commands()} - {words[0] for words in ours} == {"git", "make", "docker", "export"}
    assert ["export", "KDTREE_MIRROR=registry.example/mine"] in commands()


def test_every_subcommand_is_on_the_page() -> None:
    assert cli.__doc__
    told = set(re.findall(r"^ci/pins (\S+)", cli.__doc__, re.M)) - {"get", "requirements"}
    assert told <= {words[1] for words in commands() if words[0] == "ci/pins"}
