"""A process of the server that outlived its parent ends itself; one whose parent lives does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, os, sys, time
from kdtree_verify.orphan import end_if_orphan

def child(folder):
    end_if_orphan()
    open(f"{folder}/lives", "w").write(str(os.getpid()))
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    end_if_orphan()
    open(f"{folder}/went on", "w").close()

if __name__ == "__main__":
    end_if_orphan()  # the first process has no parent of that kind
    multiprocessing.get_context("spawn").Process(target=child, args=sys.argv[1:]).start()
    time.sleep(60)
"""


SLOW = """
import os, time
with open(os.environ["FOLDER"] + "/lives", "w") as file:
    file.write(str(os.getpid()))
while not os.path.exists(os.environ["FOLDER"] + "/go"):
    time.sleep(0.02)

def main():
    open(os.environ["FOLDER"] + "/went on", "w").close()
"""
SPAWNS = """
import multiprocessing, os, sys, time
from kdtree_verify import redaction

if __name__ == "__main__":
    redaction.everywhere([])
    context = multiprocessing.get_context(sys.argv[1])
    import slow_target  # as SGLang's launcher has it; its own import waits for nothing: "go" is there
    os.unlink(os.environ["FOLDER"] + "/lives")
    os.unlink(os.environ["FOLDER"] + "/go")
    context.Process(target=slow_target.main).start()
    time.sleep(60)
"""


def wait_until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for(path: Path) -> None:
    wait_until(lambda: path.exists() and bool(path.read_text()))


def wait_for_end(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: not stat.exists() or ") Z " in stat.read_text())


def test_an_orphan_ends_itself(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    parent = subprocess.Popen([sys.executable, program, tmp_path])
    wait_for(tmp_path / "lives")
    child = int((tmp_path / "lives").read_text())
    parent.kill()
    assert parent.wait(30) == -signal.SIGKILL
    os.kill(child, 0)  # nobody has ended it
    (tmp_path / "go").touch()
    wait_for_end(child)
    assert not (tmp_path / "went on").exists()


def spawned(tmp_path: Path, method: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process that starts another by multiprocessing, and that one, which imports what it is to run."""
    (tmp_path / "slow_target.py").write_text(SLOW)
    (tmp_path / "program.py").write_text(SPAWNS)
    (tmp_path / "go").touch()
    environment = {**os.environ, "FOLDER": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, tmp_path / "program.py", method], env=environment)
    wait_until(lambda: not (tmp_path / "go").exists())
    wait_for(tmp_path / "lives")
    return parent, int((tmp_path / "lives").read_text())


def test_one_that_loads_no_plugin_ends_behind_its_imports(tmp_path: Path) -> None:
    parent, child = spawned(tmp_path, "spawn")
    parent.kill()
    parent.wait(30)
    os.kill(child, 0)
    (tmp_path / "go").touch()
    wait_for_end(child)
    assert not (tmp_path / "went on").exists()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_one_whose_parent_lives_goes_on(tmp_path: Path, method: str) -> None:
    """A fork server's child has another parent than who asked for it."""
    parent, _ = spawned(tmp_path, method)
    (tmp_path / "go").touch()
    wait_until((tmp_path / "went on").exists)
    parent.kill()
    parent.wait(30)
