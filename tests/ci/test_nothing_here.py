"""The commands where there is no Docker, and where nothing may be written: one line, and its exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def refused(command: list[str], code: int, **environment: str) -> None:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert done.stderr.startswith("kdtree: ")
    assert " Fix: " in done.stderr


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A PATH with git, this Python and what scripts begin with."""
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    for name in ("git", "sh", "bash", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("sbom x", 1),
        ("provenance x", 1),
        ("push x 127.0.0.1:9/x", 1),
        ("gpu-job clean", 69),
        ("gpu-job summary /no/such/file", 1),
        ("verify x --key /dev/null", 64),
        ("promote x", 64),
    ],
)
def test_no_docker(command: str, code: int, bare: str) -> None:
    name, *arguments = command.split()
    refused([str(ROOT / "ci" / name), *arguments], code, PATH=bare)


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Where another user may read it: pytest's own folder is its user's alone."""
    with tempfile.TemporaryDirectory(prefix="kdtree read only ünicode ") as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(ROOT / "ci", Path(folder) / "ci", ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("command", "code"), [("registry", 69), ("cosign", 73), ("reproduce", 69)])
def test_a_checkout_that_cannot_be_written(command: str, code: int, checkout: Path) -> None:
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "PYTHONDONTWRITEBYTECODE=1"]
    refused([*as_nobody, "PATH=/usr/bin:/bin", str(checkout / "ci" / command)], code)
