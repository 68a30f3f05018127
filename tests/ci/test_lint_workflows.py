"""ci/lint-workflows finds what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = """\
name: a
on: push
permissions: {}
jobs:
  a:
    name: a
    runs-on: ubuntu-24.04
    steps:
      - name: a
        run: test "$HOME"
"""


def lint(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [ROOT / "ci" / "lint-workflows", folder],
        env=os.environ | {"PATH": path, "GITHUB_ACTIONS": ""} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("    runs-on", "    run-on", "'runs-on' is a required property"),
        ('test "$HOME"', 'echo "${{ github.event.issue.title }}"', "template-injection"),
        ('test "$HOME"', "test $HOME", "SC2086"),
        ("on: push", "on: pull_request_target", "dangerous-triggers"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, old: str, new: str, found: str) -> None:
    (tmp_path / "a.yml").write_text(GOOD.replace(old, new))
    done = lint(tmp_path)
    assert done.returncode == 1
    assert found in done.stdout


def test_what_is_right_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(GOOD)
    done = lint(tmp_path)
    assert done.returncode == 0, done.stdout
