"""A real server's start can be followed: phases in order, a load that hangs told again, where one died."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from outcome import Outcome
from proof.server import Server, started, state_of
from serving import Launch

pytestmark = [pytest.mark.server, pytest.mark.slow]

LINE = re.compile(r"kdtree: \[\d+:\d\d\] (.*)")


def lines(log: str) -> list[str]:
    """What was told of the start, in order; SGLang's progress bar may stand before a line."""
    return [found[1] for line in log.splitlines() if (found := LINE.search(line))]


def kdtree(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KDTREE_STATE_DIR": str(state_of(server.launch))}
    command = [sys.executable, "-W", "ignore", "-m", "kdtree_verify.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_phases_of_a_server_that_arms(on: Outcome) -> None:
    told = [line for line in lines(on.log) if line.startswith("dp0-pp0-tp0: ") and " for " not in line]
    names = [re.split(r",| \(", line.removeprefix("dp0-pp0-tp0: "))[0] for line in told]
    assert names == [
        "starting",
        "loading weights",
        "sizing the KV cache",
        "proving the kernel",
        "capturing graphs",
        "finishing",
        "ready",
    ]
    assert re.search(r"loading weights, \d+\.\d MB \(starting took", on.log)
    last = lines(on.log)[-1]
    assert re.match(r"ready after \d+:\d\d: HTTP answers, 1 rank, mode on \(starting .*, loading weights ", last)
    (rank,) = on.ranks.values()
    assert rank["phase"] == "ready"
    assert rank["phase_since"] >= rank["phases"][0]["since"]


def test_phases_of_a_server_with_off(off: Outcome) -> None:
    told = lines(off.log)
    assert any(re.match(r"dp0-pp0-tp0: loading the model, \d+\.\d MB", line) for line in told)
    assert re.match(r"ready after \d+:\d\d: HTTP answers, 1 rank, mode off \(loading the model ", told[-1])
    (rank,) = off.ranks.values()
    assert (rank["state"], rank["phase"]) == ("off", "ready")


def test_what_is_about_to_run_is_told_first(on: Outcome, off: Outcome) -> None:
    for outcome in (on, off):
        versions, how_to_see = (outcome.log.index(text) for text in ("kdtree: versions: ", "kdtree status --watch"))
        assert versions < how_to_see < outcome.log.index("server_args=")
    assert "libkdtree_verify_host.so" in next(line for line in on.log.splitlines() if "kdtree: versions: " in line)


def test_a_load_that_hangs_is_told_again_and_its_end_shows_where(new_launch: Callable[..., Launch]) -> None:
    """Stopped by a signal while it loads, as it is where a disk does not answer."""
    with started(new_launch("validate")) as server:
        rank = wait_for(server, lambda rank: rank["phase"] == "loading weights")
        os.kill(rank["pid"], signal.SIGSTOP)
        began = time.monotonic()
        repeated = []
        while len(repeated) < 3 and time.monotonic() - began < 60:
            time.sleep(0.2)
            repeated = [line for line in lines(server.log()) if "loading weights for " in line]
        assert len(repeated) >= 3, server.log()[-3000:]
        assert all(
            re.match(r"dp0-pp0-tp0: loading weights for .*, about \d+% of \d+\.\d MB read$", line) for line in repeated
        )
        assert "loading: loading weights" in kdtree(server, "status").stdout
        health = kdtree(server, "health")
        assert health.returncode == 1
        assert "dp0-pp0-tp0 is loading (loading weights)" in health.stderr
        assert kdtree(server, "health", "--live").returncode == 0

        os.killpg(server.process.pid, signal.SIGKILL)
        server.wait_end()
        shown = kdtree(server, "status").stdout
        assert "loading: loading weights, DEAD" in shown
        assert "server: mode validate" in shown


def wait_for(server: Server, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first rank's file as soon as it holds."""
    deadline = time.monotonic() + server.launch.ready_seconds
    while time.monotonic() < deadline:
        for rank in server.ranks().values():
            if holds(rank):
                return rank
        time.sleep(0.02)
    raise TimeoutError(server.log()[-3000:])
