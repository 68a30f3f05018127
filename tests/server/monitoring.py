"""What one server of the tests shows to who watches it: /metrics, `kdtree status`, and what looking costs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from proof.server import Server, state_of

SECONDS = 60.0
CHECKS = (["health"], ["health", "--live"], ["health", "--ready"], ["status"], ["status", "--json"])


@dataclass(frozen=True)
class Seen:
    """What was seen after the requests.

    Attributes:
        metrics: The text of /metrics, published after the last request.
        status: What `kdtree status --json` says.
    """

    metrics: str
    status: dict[str, Any]

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Labels, sorted by name, to value."""
        lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", self.metrics, re.M)
        return {tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels))): float(value) for labels, value in lines}


@dataclass(frozen=True)
class Cost:
    """Forward passes of the target model, over all ranks and layers: before the checks, after them, after a control.

    The control is SGLang's own /health, which has the model generate a token where nothing else runs.
    """

    before: int
    after: int
    after_control: int
    said: tuple[str, ...]


def see(server: Server) -> Seen:
    """Waits until every rank has published what it reports now."""
    now, deadline = time.time(), time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
            seen = Seen(response.read().decode(), {})
        told = seen.series("kdtree_rank_report_time_seconds").values()
        if server.launch.mode == "off" or (len(told) == len(server.ranks()) and min(told) > now):
            return Seen(seen.metrics, json.loads(kdtree(server, "status", "--json")))
        time.sleep(0.5)
    raise TimeoutError(f"the ranks' metrics are not renewed\n{seen.metrics[-3000:]}\n{server.log()[-3000:]}")


def cost(server: Server) -> Cost:
    """What each check says, and costs: all run several times."""
    before = forward_passes(server)
    said = [kdtree(server, *command) for command in CHECKS * 3]
    after = forward_passes(server)
    urllib.request.urlopen(f"{server.url}/health", timeout=60).close()
    return Cost(before, after, forward_passes(server), tuple(said[: len(CHECKS)]))


def forward_passes(server: Server) -> int:
    """As each rank has counted them now."""
    counters = [rank["counters"] for rank in server.settled().values()]
    return sum(counted["verify_calls"] + counted["not_verify_calls"] for counted in counters)


def kdtree(server: Server, *arguments: str) -> str:
    """A command's words, which must succeed."""
    environment = {**os.environ, "KDTREE_STATE_DIR": str(state_of(server.launch))}
    command = [sys.executable, "-m", "kdtree_verify.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout
