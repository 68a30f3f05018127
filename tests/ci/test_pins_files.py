"""What is left of a lock when its writer is killed, or the disk is full: the old one, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Writes through the product's function; `{before}` is what happens first.
WRITER = """
import os, resource, signal, sys
from pathlib import Path
from pinning import files
{before}
files.replace(Path(sys.argv[1]), "new" * 100_000)
"""
KILLED_BEFORE_SYNC = "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)"
KILLED_BEFORE_NAMED = "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
FULL = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"


def write(file: Path, before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WRITER.format(before=before), file]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "ci")}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("before", [KILLED_BEFORE_SYNC, KILLED_BEFORE_NAMED])
def test_a_writer_that_is_killed_leaves_the_old_file(before: str, tmp_path: Path) -> None:
    file = tmp_path / "pins.toml"
    file.write_text("old")
    assert write(file, before).returncode == -signal.SIGKILL
    assert file.read_text() == "old"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "pins.toml"
    file.write_text("old")
    assert "File too large" in write(file, FULL).stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"pins.toml": "old"}


def test_a_new_file_keeps_the_old_ones_rights(tmp_path: Path) -> None:
    file = tmp_path / "pins.toml"
    file.write_text("old")
    file.chmod(0o640)
    assert write(file, "").returncode == 0
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o640, "new" * 100_000)


def test_a_full_disk_is_one_line_of_the_command() -> None:
    """`ci/pins lock` where nothing can be kept: pip's downloads end, and the lock stays."""
    lock = ROOT / "ci" / "pins.toml"
    before = lock.read_bytes()
    limited = "import resource, runpy, signal, sys\n"
    limited += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    limited += f"sys.argv = ['ci/pins', 'lock', 'compose']\nsys.path.insert(0, {str(ROOT / 'ci')!r})\n"
    limited += f"runpy.run_path({str(ROOT / 'ci' / 'pins')!r}, run_name='__main__')\n"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].startswith("kdtree: ")
    assert lock.read_bytes() == before


def test_an_index_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    before = (ROOT / "ci" / "pins.toml").read_bytes()
    environment = os.environ | {
        "PIP_INDEX_URL": "http://127.0.0.1:1/",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    environment |= {"PIP_NO_CACHE_DIR": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run([ROOT / "ci" / "pins", "lock", "compose"], env=environment, capture_output=True, text=True)
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].startswith("kdtree: pip could not resolve the set; ")
    assert (ROOT / "ci" / "pins.toml").read_bytes() == before
    assert [*tmp_path.iterdir()] == []
