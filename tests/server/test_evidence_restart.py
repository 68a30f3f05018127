"""What validate measured outlives its server: two runs of a real one, the first killed, are one body of evidence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo import conversation
from outcome import REQUESTS
from proof.server import started
from serving import Launch

pytestmark = pytest.mark.server
WRITTEN_SECONDS = 60.0


def report(folder: Path) -> tuple[int, dict[str, Any]]:
    """`kdtree report`'s exit code and document."""
    command = [sys.executable, "-m", "kdtree_verify.cli", "report", "--json", "--dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def compared(document: dict[str, Any]) -> int:
    return sum(layer["compare_calls"] for layer in document.get("layers", []))


def serve(launch: Launch, folder: Path, before: int) -> int:
    """Starts a server, asks it, waits until what it measured is on the disk, and kills it; the calls it compared."""
    with started(launch) as server:
        server.wait_ready()
        conversation.hold(server.url, REQUESTS[:1])
        calls = sum(compared(rank) for rank in server.settled().values())
        deadline = time.monotonic() + WRITTEN_SECONDS
        while compared(report(folder)[1]) < before + calls and time.monotonic() < deadline:
            time.sleep(1)
        for rank in server.settled().values():
            os.kill(rank["pid"], signal.SIGKILL)
        server.wait_end()
    return calls


def test_two_runs_are_merged(new_launch: Callable[..., Launch], tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    first = serve(new_launch("validate", environment={"KDTREE_EVIDENCE_DIR": str(folder)}), folder, 0)
    second = serve(new_launch("validate", environment={"KDTREE_EVIDENCE_DIR": str(folder)}), folder, first)
    code, found = report(folder)
    assert first > 0
    assert second > 0
    assert compared(found) == first + second
    assert len(found["runs"]) == 2
    assert len({run["run"] for run in found["runs"]}) == 2
    assert found["not_counted"] == []
    assert (code, found["verdict"]) == (2, "not yet")

    setup = found["setup"]
    assert Path(setup["model"]).is_dir(), "the launcher's arguments name the model"
    assert (setup["tp_size"], setup["heads"], setup["pool_dtype"]) == (1, 8, "bf16")
    status = {criterion["name"]: criterion["status"] for criterion in found["criteria"]}
    assert {name for name, each in status.items() if each == "missing"} >= {"card", "calls", "time", "prefixes"}
    assert {status[name] for name in ("ranks", "state", "layers", "installation", "bound", "indices")} == {"met"}
    assert "failed" not in status.values()
    assert sum(cell["calls"] for cell in found["cells"]) == first + second
    assert sum(point["calls"] for point in found["history"]) == first + second
