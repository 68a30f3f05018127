"""ci/room: the line before anything is written where the disk is too small."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "room"


def room(fresh: int, again: int, temporary: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TMPDIR": str(temporary)}
    return subprocess.run([SCRIPT, str(fresh), str(again)], env=environment, capture_output=True, text=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path]).returncode != 0:
        pytest.skip("mounting needs root, and CAP_SYS_ADMIN")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_says_nothing_where_there_is_room() -> None:
    done = room(0, 0, tempfile.gettempdir())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_disk_too_small_for_the_build(tmp_path: Path) -> None:
    done = room(10**9, 10**9, tmp_path)
    assert done.returncode == 69
    assert f"room on the disk of {SCRIPT.parents[1].resolve()}: 1000000000 GB needed, " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_temporary_files_on_a_small_disk_of_their_own(small: Path) -> None:
    done = room(0, 0, small)
    assert done.returncode == 69
    assert f"the disk of {small.resolve()}: 3 GB needed, 0 GB free. Fix: " in done.stderr
