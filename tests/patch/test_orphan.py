"""A process of the server that outlived its parent ends itself; one whose parent lives does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and ") Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (tmp_path / "went on").exists()
