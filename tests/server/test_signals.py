"""A server without Docker under signals: no process of it is left, and nothing that hinders the next start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proof.server import Server, started
from serving import Launch
from stream import Stream

pytestmark = [pytest.mark.server, pytest.mark.slow]


def session(server: Server) -> dict[int, str]:
    """Names of the living processes of a server's session, by id; the server itself among them."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, _, _, leader = rest.split()[:4]
            if int(leader) == server.process.pid and state not in "ZX":
                found[int(entry.name)] = name
    return found


def wait_gone(server: Server, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while session(server):
        assert time.monotonic() < deadline, session(server)
        time.sleep(0.2)


def wait_for(server: Server, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in server.log():
        assert time.monotonic() < deadline, server.log()[-3000:]
        time.sleep(0.1)


def segments(server: Server) -> set[Path]:
    """Shared memory that a server's processes have mapped, by its file."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in session(server))
    return {Path(line.split()[-1]) for line in maps.splitlines() if line.split()[-1].startswith("/dev/shm/")}


def test_killed_as_it_loads_and_as_it_serves_then_ended_in_a_request(new_launch: Callable[..., Launch]) -> None:
    """One folder, one port: each start meets what the kill before it has left."""
    launch = new_launch("validate")
    with started(launch) as server:
        wait_for(server, "server_args=")  # its ranks' processes are there and import
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.wait_end() == -signal.SIGKILL
        wait_gone(server, 60)

    with started(launch) as server:
        server.wait_ready()
        server.settled()
        shared = segments(server)
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.wait_end() == -signal.SIGKILL
        wait_gone(server, 10)
    # What is left of it is SGLang's, of a few KiB, and has another name at each start.
    left = {path for path in shared if path.exists()}
    assert all(path.name.startswith("sglang_loads_") and path.stat().st_size < 1 << 20 for path in left), left
    for path in left:
        path.unlink()

    with started(launch) as server:
        server.wait_ready()
        assert [rank["mode"] for rank in server.settled().values()] == ["validate"]
        stream = Stream(server.url, 64)
        for _ in range(2):  # the second changes nothing
            os.kill(server.process.pid, signal.SIGTERM)
        assert stream.answered(60) == 64
        assert server.wait_end() == 0
        wait_gone(server, 5)
