"""A rank's keeper: what it takes from the box becomes a file, a few, within limits; what fails does not end serving."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from captured import ORIGIN, made
from kdtree_verify.rank.records import Model
from kdtree_verify.replay import file, folder, keeper
from kdtree_verify.replay.capture import Capture
from kdtree_verify.replay.keeper import Keeper


class Box:
    """Holds what it is filled with, and counts who asks."""

    def __init__(self, *captures: Capture):
        self.captures, self.asked = list(captures), 0

    def take(self) -> Capture | None:
        self.asked += 1
        return self.captures.pop(0) if self.captures else None


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "evidence" / "captures"


def room_for(count: int, tmp_path: Path) -> int:
    """A limit of the folder that so many captures of made() reach."""
    file.write(tmp_path / "one", made(), ORIGIN)
    # The time in it is a few digits shorter or longer.
    return (count - 1) * ((tmp_path / "one").stat().st_size + 64) + file.size(made())


def looks(kept: Keeper, times: int) -> None:
    """As the reporter's thread does, each time after what was taken is written."""
    for _ in range(times):
        kept()
        kept.join()


def layers(directory: Path) -> list[tuple[str, int]]:
    found = [file.read(path)[0] for path in folder.paths(directory)]
    return sorted((str(capture.model), capture.layer) for capture in found)


def test_what_the_box_held_is_a_file_and_the_log_names_it(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    box = Box(made(layer=3, rel_l2=0.25))
    before = time.time()
    kept = Keeper(box, directory, ORIGIN, 4)
    assert not directory.exists()
    looks(kept, 3)
    assert box.asked == 3
    (path,) = folder.paths(directory)
    capture, origin = file.read(path)
    assert capture.layer == 3
    assert before <= origin.at <= time.time()
    assert path.name.endswith(".safetensors")
    assert "-dp0-pp0-tp1-target-layer3-" in path.name
    assert [stat.S_IMODE(each.stat().st_mode) for each in (directory, path)] == [0o700, 0o600]
    assert [each.name for each in directory.iterdir()] == [path.name]
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("kdtree validate: a call of target layer 3 is kept: relative L2 2.50e-01 (bound 0.02). ")
    assert said.endswith(f"kdtree replay {path}")


def test_no_more_than_it_may(directory: Path) -> None:
    box = Box(*(made(layer=layer) for layer in range(6)))
    looks(Keeper(box, directory, ORIGIN, 4), 10)
    assert layers(directory) == [("target", layer) for layer in range(4)]
    assert box.asked == 4  # the box is left alone then: what it holds costs nothing


def test_other_layers_come_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(made(layer=1), made(layer=1), made(layer=2), made(layer=1, model=Model.DRAFT), made(layer=1))
    kept = Keeper(box, directory, ORIGIN, 4)
    looks(kept, 4)
    assert box.asked == 2  # a layer that is kept already: it pauses
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    kept._not_before = 0.0
    looks(kept, 4)
    assert layers(directory) == [("draft", 1), ("target", 1), ("target", 2)]
    monkeypatch.setattr(keeper, "AGAIN_AFTER", 0.0)
    box.captures.append(made(layer=2))
    looks(kept, 2)
    assert layers(directory) == [("draft", 1), ("target", 1), ("target", 2), ("target", 2)]


def test_the_folder_is_not_filled_beyond_its_limit(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    monkeypatch.setattr(folder, "FOLDER_LIMIT", room_for(2, tmp_path))
    box = Box(*(made(layer=layer) for layer in range(6)))
    kept = Keeper(box, directory, ORIGIN, 6)
    looks(kept, 5)
    assert layers(directory) == [("target", 0), ("target", 1)]
    (said,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "are in use: remove what was looked at (said once)" in said
    assert str(directory) in said
    # Room is made: what leaves its bound then is kept.
    for path in folder.paths(directory):
        path.unlink()
    looks(kept, 1)
    assert layers(directory) == [("target", 5)]


def test_a_capture_that_is_too_large(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    monkeypatch.setattr(file, "LARGEST_FILE", file.size(made()) - 1)
    looks(Keeper(Box(made(), made()), directory, ORIGIN, 4), 2)
    assert folder.paths(directory) == []
    (said,) = (record.getMessage() for record in caplog.records)
    assert "none takes more than" in said


def test_what_a_killed_process_left_is_removed(directory: Path) -> None:
    directory.mkdir(parents=True)
    old, new = directory / ".old.safetensors.part", directory / ".new.safetensors.part"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1.0, 1.0))
    looks(Keeper(Box(made()), directory, ORIGIN, 4), 1)
    assert not old.exists()
    assert new.exists()
    assert len(folder.paths(directory)) == 1


def test_who_looks_is_not_held_up(directory: Path) -> None:
    """Another rank writes, or the disk is slow: the reporter's thread goes on, and takes no second one meanwhile."""
    directory.mkdir(parents=True)
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    box = Box(made(layer=1), made(layer=2))
    kept = Keeper(box, directory, ORIGIN, 4)
    began = time.monotonic()
    for _ in range(5):
        kept()
    assert time.monotonic() - began < 5
    assert box.asked == 1
    assert folder.paths(directory) == []
    os.close(descriptor)
    kept.join()
    assert len(folder.paths(directory)) == 1


def test_ranks_that_share_a_folder(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "FOLDER_LIMIT", room_for(5, tmp_path))
    keepers = [Keeper(Box(*(made(layer=layer) for layer in range(3))), directory, ORIGIN, 3) for _ in range(4)]
    threads = [threading.Thread(target=looks, args=(each, 3)) for each in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = folder.paths(directory)
    assert len(found) == 5
    assert sum(path.stat().st_size for path in found) <= folder.FOLDER_LIMIT


# ---- what fails


def warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    return record.getMessage()


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    (tmp_path / "evidence").write_text("a file")
    looks(Keeper(Box(made(), made()), tmp_path / "evidence" / "captures", ORIGIN, 4), 3)
    assert "it cannot be written" in warning(caplog)
    assert "Not a directory" in warning(caplog)


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """A file system of its own at the folder; skips where that needs rights that are not there."""
    directory.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_disk_that_is_full_and_has_room_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    with mounted(directory, "size=256k"):
        (directory / "other").write_bytes(b"x" * (200 << 10))
        kept = Keeper(Box(*(made(layer=layer) for layer in range(4))), directory, ORIGIN, 4)
        looks(kept, 3)
        assert "it cannot be written" in warning(caplog)
        with pytest.raises(OSError, match="No space left on device"):
            file.write(directory / "directly", made(), ORIGIN)
        assert [path.name for path in directory.iterdir()] == ["other"]  # nothing half-written
        (directory / "other").unlink()
        looks(kept, 1)
        assert layers(directory) == [("target", 3)]


def test_a_disk_that_is_read_only(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mounted(directory, "size=1m,ro"):
        looks(Keeper(Box(made()), directory, ORIGIN, 4), 1)
    assert "Read-only file system" in warning(caplog)


LIMITED = """
import logging, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from captured import ORIGIN, made
from kdtree_verify.replay.keeper import Keeper
from test_replay_keeper import Box
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
kept = Keeper(Box(made()), Path(sys.argv[2]), ORIGIN, 4)
kept()
kept.join()
print("served on")
"""


def test_a_limit_on_files(directory: Path) -> None:
    """EFBIG, in a process of its own: the write is refused in the middle, and nothing of it is left."""
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).parent), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said, last = done.stdout.splitlines()
    assert said.startswith("WARNING kdtree: a call out of bound is not kept in ")
    assert "File too large" in said
    assert last == "served on"
    assert list(directory.iterdir()) == []
