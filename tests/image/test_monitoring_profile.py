"""Compose's profile with a real server and a real Prometheus, which asks it for its ranks. Grafana is left out.

Prometheus' image cannot be had here: Debian's binary stands in for it, in this project's image. The server's name comes
from the container's hosts file, for the engine's own name service needs a firewall that not every machine has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import prometheus_server
from containers import MODELS, ROOT, wait_until

if TYPE_CHECKING:
    from docker.models.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.slow]

SECONDS = 300
Compose = Callable[..., str]


@pytest.fixture
def override(image: dict[str, Any], tmp_path: Path) -> Path:
    """What stands in for Prometheus' image."""
    binary = prometheus_server.tool("prometheus")
    if binary is None:
        pytest.skip("no Prometheus: ci/prometheus fetches it")
    prometheus = {
        "image": image["tag"],
        "entrypoint": ["/opt/prometheus/prometheus"],
        "volumes": [f"{Path(binary).resolve().parent}:/opt/prometheus:ro"],
        "healthcheck": {"disable": True},
    }
    # Its own image has the folder, and a volume takes the owner from there.
    data = {"driver_opts": {"type": "tmpfs", "device": "tmpfs", "o": "uid=65534,size=64m"}}
    path = tmp_path / "override.json"
    path.write_text(json.dumps({"services": {"prometheus": prometheus}, "volumes": {"prometheus-data": data}}))
    return path


@pytest.fixture
def compose(image: dict[str, Any], models: Path, override: Path) -> Iterator[Compose]:
    """docker-compose with the profile, for a project of the test's own, taken down at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KDTREE_")} | {
        "KDTREE_VERIFY": "validate",
        "KDTREE_IMAGE": image["tag"],
        "KDTREE_MODELS": str(models),
        "KDTREE_MODEL": f"{MODELS}/tiny",
        "KDTREE_SERVER_ARGS": "--speculative-algorithm NGRAM --sleep-on-idle --enable-metrics",
        "KDTREE_LISTEN": "127.0.0.1:0",
        "KDTREE_PROMETHEUS_LISTEN": "127.0.0.1:0",
    }
    files = [f"--file={path}" for path in (ROOT / "compose.yaml", ROOT / "compose.cpu.yaml", override)]
    project = ["--project-name=kdtree-monitoring", "--env-file=/dev/null", *files, "--profile=monitoring"]

    def run(*arguments: str) -> str:
        command = ["docker-compose", *project, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    run("down", "--volumes", "--timeout=5")


def up(client: Any, compose: Compose, override: Path) -> Container:
    """The server, then Prometheus; returns Prometheus' container."""
    compose("up", "--detach", "--no-build", "server")
    server = client.containers.get(compose("ps", "--quiet", "server").strip())
    (network,) = server.attrs["NetworkSettings"]["Networks"].values()
    document = json.loads(override.read_text())
    document["services"]["prometheus"]["extra_hosts"] = [f"server:{network['IPAddress']}"]
    override.write_text(json.dumps(document))
    compose("up", "--detach", "--no-build", "prometheus")
    return client.containers.get(compose("ps", "--quiet", "prometheus").strip())


def test_prometheus_finds_the_servers_ranks(client: Any, compose: Compose, override: Path) -> None:
    container = up(client, compose, override)

    host = container.attrs["HostConfig"]
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["Privileged"]) == (True, ["ALL"], False)
    code, status = container.exec_run(["cat", "/proc/1/status"])
    assert code == 0
    assert re.search(r"Uid:\s+65534\s.*CapEff:\s+0{16}\n.*NoNewPrivs:\s+1", status.decode(), re.S)

    (published,) = container.ports["9090/tcp"]
    assert published["HostIp"] == "127.0.0.1"
    prometheus = prometheus_server.Prometheus(int(published["HostPort"]))

    def ranks() -> list[dict[str, Any]]:
        try:
            return prometheus.query('kdtree_rank_info{instance="server:30000", mode="validate"}')
        except OSError:
            return []  # not up yet

    wait_until(lambda: bool(ranks()), SECONDS, lambda: compose("logs", "--tail=20"))
    (rank,) = ranks()
    assert (rank["metric"]["job"], rank["metric"]["tp_rank"]) == ("kdtree", "0")
    assert {rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]} == {"ok"}
