"""The image as a server, on the CPU: read-only, its key, health, signals, a rank that dies. Few starts, much asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from containers import MODELS, ROOT, SERVER, wait_until

if TYPE_CHECKING:
    from docker.models.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.slow]

READY_SECONDS = 300
CPU = {"KDTREE_DEVICE": "cpu", "TRITON_INTERPRET": "1"}
KEY = "not-in-any-command-line"
GREEDY = {"text": "dipi biko nalo sane duni foro", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
SECOND = 10**9
# The image's own check; only more often, and with no time of grace after it was good once.
HEALTH = {"interval": 2 * SECOND, "start_interval": 2 * SECOND, "retries": 2}


def health(container: Container) -> str:
    container.reload()
    return container.attrs["State"]["Health"]["Status"]


def wait_healthy(container: Container) -> None:
    def settled() -> bool:
        return health(container) == "healthy" or container.status != "running"

    wait_until(settled, READY_SECONDS, lambda: container.logs(tail=30).decode())
    assert container.status == "running", container.logs(tail=60).decode()


def processes(container: Container) -> dict[int, str]:
    """Command line of every process in the container, by its id on this machine."""
    listed = container.top(ps_args="-eo pid,args")["Processes"]
    return {int(pid): arguments for pid, arguments in listed}


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


def ask(container: Container, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
    """One request to the server's published port."""
    container.reload()
    (published,) = container.ports["30000/tcp"]
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{published['HostPort']}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


@pytest.fixture
def serve(start: Callable[..., Container], models: Path) -> Callable[..., Container]:
    """Starts the server with the tiny model in a mode."""

    def started(mode: str, **options: Any) -> Container:
        volumes = {str(models): {"bind": MODELS, "mode": "ro"}} | options.pop("volumes", {})
        environment = CPU | {"KDTREE_VERIFY": mode} | options.pop("environment", {})
        return start(
            *SERVER,
            environment=environment,
            volumes=volumes,
            ports={"30000/tcp": ("127.0.0.1", None)},
            healthcheck=HEALTH,
            **options,
        )

    return started


def test_confined_with_a_key_until_its_rank_dies(serve: Callable[..., Container], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    container = serve(
        "validate",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        tmpfs={"/tmp": "", "/root/.cache": "exec", "/root/.triton": ""},
        volumes={str(key): {"bind": "/run/secrets/api-key", "mode": "ro"}},
        environment={"KDTREE_API_KEY_FILE": "/run/secrets/api-key"},
    )
    wait_healthy(container)

    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(container, "/generate", GREEDY)
    assert ask(container, "/generate", GREEDY, KEY)["text"]
    assert KEY not in json.dumps(container.attrs) + str(processes(container))

    wait_until(
        lambda: any(layer["calls"] for layer in ranks(container)[0]["layers"]),
        90,
        lambda: container.exec_run(["kdtree", "status"]).output.decode(),
    )

    kill_rank(container)
    assert container.wait(timeout=60)["StatusCode"] != 0


def test_unhealthy_when_a_rank_reports_another_mode(serve: Callable[..., Container]) -> None:
    container = serve("on")
    wait_healthy(container)
    # The server's own request for a mode is rewritten under it: what the ranks report is then another.
    container.exec_run(["sed", "-i", 's/"mode": "on"/"mode": "validate"/', "/run/kdtree/server.json"])
    wait_until(lambda: health(container) == "unhealthy", 120, lambda: str(container.attrs["State"]["Health"]))

    # And it ends by SIGTERM within its grace, nothing of it left.
    left = processes(container)
    assert len(left) > 1
    container.stop(timeout=60)
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 0
    assert [pid for pid in left if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_loads(serve: Callable[..., Container], number: signal.Signals) -> None:
    container = serve("off")
    wait_until(lambda: b"server_args=" in container.logs(), READY_SECONDS, lambda: container.logs().decode())
    container.kill(number.name)
    container.wait(timeout=60)


@pytest.fixture
def project(image: dict[str, Any], models: Path) -> Iterator[Callable[..., str]]:
    """docker-compose for a project of the test's own, taken down at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KDTREE_")} | {
        "KDTREE_VERIFY": "on",
        "KDTREE_IMAGE": image["tag"],
        "KDTREE_MODELS": str(models),
        "KDTREE_MODEL": f"{MODELS}/tiny",
        "KDTREE_SERVER_ARGS": "--speculative-algorithm NGRAM --sleep-on-idle",
        "KDTREE_LISTEN": "127.0.0.1:0",
        "KDTREE_RESTART": "no",
    }
    files = [f"--file={ROOT / name}" for name in ("compose.yaml", "compose.cpu.yaml")]

    def compose(*arguments: str) -> str:
        command = ["docker-compose", "--project-name=kdtree-test", "--env-file=/dev/null", *files, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield compose
    compose("down", "--volumes", "--timeout=20")


def test_compose_until_its_rank_dies(client: Any, project: Callable[..., str]) -> None:
    project("up", "--detach", "--no-build")
    container = client.containers.get(project("ps", "--quiet", "server").strip())
    wait_healthy(container)
    assert ask(container, "/generate", GREEDY)["text"]
    kill_rank(container)
    assert container.wait(timeout=60)["StatusCode"] != 0
