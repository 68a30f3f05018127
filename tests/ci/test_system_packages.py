"""ci/system-packages on machines described by what is on PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "system-packages"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with a shell's basics, no compiler, no Python, no package manager, and an ordinary user."""
    for tool in ("sh", "find", "touch", "chmod", "mktemp", "rm", "cat"):
        found = shutil.which(tool)
        assert found
        (tmp_path / tool).symlink_to(found)
    program(tmp_path, "id", "echo 1000")
    return tmp_path


def program(machine: Path, name: str, body: str = "exit 0") -> None:
    (machine / name).write_text(f"#!/bin/sh\n{body}\n")
    (machine / name).chmod(0o755)


def run(machine: Path, *names: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine), "SSL_CERT_FILE": str(machine / "none")}
    return subprocess.run([SCRIPT, *names], env=environment, capture_output=True, text=True)


def test_says_nothing_where_nothing_is_missing(machine: Path) -> None:
    for name in ("g++", "make"):
        program(machine, name)
    result = run(machine, "g++", "make")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_ordinary_user_is_told_what_to_install(machine: Path) -> None:
    program(machine, "make")
    program(machine, "apt-get")
    result = run(machine, "g++", "make", "python3-venv")
    assert result.returncode == 69
    assert "lacks: g++ python3-venv. Fix: " in result.stderr


def test_root_gets_what_is_missing_and_nothing_else(machine: Path) -> None:
    program(machine, "id", "echo 0")
    program(machine, "make")
    program(machine, "apt-get", f'echo "$@" >>{machine}/asked; touch {machine}/g++; chmod +x {machine}/g++')
    result = run(machine, "g++", "make")
    assert result.returncode == 0
    assert "installing with apt-get: g++" in result.stderr
    installed = [line for line in (machine / "asked").read_text().splitlines() if " install " in line]
    assert installed
    assert all(line.endswith(" g++") for line in installed)


def test_an_installation_that_does_not_help_is_said(machine: Path) -> None:
    program(machine, "id", "echo 0")
    program(machine, "apt-get")
    result = run(machine, "g++")
    assert result.returncode == 69
    assert "g++ is installed but does not" in result.stderr


def test_a_failed_installation_shows_apts_words(machine: Path) -> None:
    program(machine, "id", "echo 0")
    program(machine, "apt-get", "echo no such mirror >&2; exit 100")
    result = run(machine, "g++")
    assert result.returncode == 69
    assert "no such mirror" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("kdtree: apt-get cannot install: g++")


def test_a_package_counts_when_dpkg_has_it(machine: Path) -> None:
    program(machine, "dpkg-query", "echo -n installed")
    assert run(machine, "xz-utils").returncode == 0
