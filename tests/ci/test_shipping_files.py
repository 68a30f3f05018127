"""Documents are written whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shipping import files
from shipping.errors import ShippingError

ROOT = Path(__file__).parents[2]
WRITE = """
import sys
from pathlib import Path
from shipping import errors, files
path = Path(sys.argv[1])
sys.exit(errors.in_one_line(lambda: len(files.write(path, lambda: {"many": "x" * 100_000})) - 1))
"""


def write(path: Path, most: int) -> subprocess.CompletedProcess[str]:
    """Writes a document in a process whose files may have so many bytes."""
    return subprocess.run(
        [sys.executable, "-c", WRITE, path],
        env={"PYTHONPATH": str(ROOT / "ci")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        capture_output=True,
        text=True,
    )


def test_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert write(path, 200_000).returncode == 0
    before = path.read_bytes()
    done = write(path, 50_000)
    assert done.returncode == os.EX_CANTCREAT
    assert (
        done.stderr
        == f"kdtree: {path} cannot be written: File too large. Fix: a folder that can be written, with room\n"
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_document_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> dict[str, object]:
        raise ShippingError("no")

    with pytest.raises(ShippingError):
        files.write(tmp_path / "a.json", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_told_before_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShippingError, match="cannot be written: "):
        files.write(tmp_path / "file" / "a.json", lambda: pytest.fail("made"))
