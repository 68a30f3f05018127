"""A server in a container: how it is started, waited for, asked, looked into and killed."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from containers import wait_until

if TYPE_CHECKING:
    from docker.models.containers import Container

READY_SECONDS = 300
CPU = {"KDTREE_DEVICE": "cpu", "TRITON_INTERPRET": "1"}
GREEDY = {"text": "dipi biko nalo sane duni foro", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
SECOND = 10**9
# The image's own check; only more often, and with no time of grace after it was good once.
HEALTH = {"interval": 2 * SECOND, "start_interval": 2 * SECOND, "retries": 2}


def health(container: Container) -> str:
    container.reload()
    return container.attrs["State"]["Health"]["Status"]


def wait_healthy(container: Container, restarts: int = 0) -> None:
    """Until its check is good, after so many restarts by Docker. Fails where it ends, or starts more often."""

    def settled() -> bool:
        found = health(container)
        assert container.attrs["RestartCount"] <= restarts, container.logs(tail=60).decode()
        done = container.status not in ("running", "restarting") or found == "healthy"
        return done and container.attrs["RestartCount"] == restarts

    wait_until(settled, READY_SECONDS, lambda: container.logs(tail=30).decode())
    assert container.status == "running", container.logs(tail=60).decode()


def processes(container: Container) -> dict[int, str]:
    """Command line of every process in the container, by its id on this machine."""
    listed = container.top(ps_args="-eo pid,args")["Processes"]
    return {int(pid): arguments for pid, arguments in listed}


def process(container: Container, words: str) -> int:
    """The one process but the init whose command line holds these words."""
    (found,) = (pid for pid, line in processes(container).items() if words in line and "/tini" not in line)
    return found


def left(pids: dict[int, str]) -> list[int]:
    """Those of the processes that are still there."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def ranks(container: Container) -> list[dict[str, Any]]:
    """What each rank reports."""
    return json.loads(container.exec_run(["kdtree", "status", "--json"]).output)["ranks"]


def kill_rank(container: Container) -> None:
    """SIGKILL for the rank that reports, from outside."""
    inside = ranks(container)[0]["pid"]
    for pid in processes(container):
        names = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
        if int(names[-1]) == inside:
            os.kill(pid, signal.SIGKILL)
            return
    pytest.fail(f"no process {inside} in {processes(container)}")


def url(container: Container) -> str:
    """Where its port is published."""
    container.reload()
    (published,) = container.ports["30000/tcp"]
    return f"http://127.0.0.1:{published['HostPort']}"


def ask(container: Container, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
    """One request, and its answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url(container) + path, data, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)
