"""The image as a server by `docker run`, on the CPU: any user, health, signals, a killed process. Few starts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from containers import MODELS, SERVER, wait_until
from fake_driver import FAKES, RTX, device, libcuda
from servers import CPU, GREEDY, HEALTH, READY_SECONDS, ask, health, left, process, processes, url, wait_healthy
from stream import Stream

if TYPE_CHECKING:
    from docker.models.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.slow]


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


def test_a_user_without_a_name_until_it_is_interrupted_twice(serve: Callable[..., Container]) -> None:
    container = serve("on", user="12345:12345", environment={"KDTREE_LOG_INTERVAL": "1"})
    wait_healthy(container)

    # The server's own request for a mode is rewritten under it: what the ranks report is then another.
    rewritten = ["sed", "-i", 's/"mode": "{}"/"mode": "{}"/', "/run/kdtree/server.json"]
    container.exec_run([word.format("on", "validate") for word in rewritten])
    wait_until(lambda: health(container) == "unhealthy", 120, lambda: str(container.attrs["State"]["Health"]))
    container.exec_run([word.format("validate", "on") for word in rewritten])
    wait_until(lambda: health(container) == "healthy", 120, lambda: str(container.attrs["State"]["Health"]))

    before = processes(container)
    stream = Stream(url(container), 1500)
    container.kill("SIGINT")
    wait_until(lambda: b"Waiting for connections to close" in container.logs(), 30, lambda: container.logs().decode())
    with pytest.raises(OSError, match=r"refused|reset|closed|[Bb]roken pipe"):
        ask(container, "/generate", GREEDY)
    assert stream.under_way()
    container.kill("SIGINT")
    assert container.wait(timeout=60)["StatusCode"] == 130
    assert stream.answered(10) is None
    assert left(before) == []


def test_root_without_a_capability_until_its_detokenizer_is_killed(serve: Callable[..., Container]) -> None:
    container = serve("validate", user="0:0", cap_drop=["ALL"], security_opt=["no-new-privileges"])
    wait_healthy(container)
    assert ask(container, "/generate", GREEDY)["text"]
    before, killed = processes(container), time.monotonic()
    os.kill(process(container, "sglang::detokenizer"), signal.SIGKILL)
    assert container.wait(timeout=90)["StatusCode"] == 137
    assert time.monotonic() - killed < 30
    assert left(before) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_loads(serve: Callable[..., Container], number: signal.Signals, code: int) -> None:
    container = serve("off")
    wait_until(lambda: b"server_args=" in container.logs(), READY_SECONDS, lambda: container.logs().decode())
    before = processes(container)
    container.kill(number.name)
    assert container.wait(timeout=60)["StatusCode"] == code
    assert left(before) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, 137)])
def test_a_signal_while_it_checks(start: Callable[..., Container], number: signal.Signals, code: int) -> None:
    """The entrypoint waits for a driver that hangs, in a child process."""
    container = start(
        *("--model-path", "m"),
        environment={
            "FAKE_NVML": json.dumps({"gpus": [RTX]}),
            "FAKE_CUDA": device(RTX),
            "FAKE_CUDA_HANG": "cuInit",
            "PYTHONPATH": "/fakes",
            "LD_LIBRARY_PATH": "/driver",
            "KDTREE_VERIFY": "on",
        },
        volumes={
            str(FAKES / "pynvml.py"): {"bind": "/fakes/pynvml.py", "mode": "ro"},
            str(libcuda()): {"bind": "/driver", "mode": "ro"},
        },
    )
    wait_until(lambda: len(processes(container)) == 3, 30, lambda: container.logs().decode())
    before = processes(container)
    if number is signal.SIGKILL:
        os.kill(process(container, "entrypoint.py"), number)
    else:
        container.kill(number.name)
    assert container.wait(timeout=30)["StatusCode"] == code
    assert left(before) == []
    assert "Traceback" not in container.logs().decode()
