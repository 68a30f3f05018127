"""The server under Docker Compose, as compose.yaml has it with an overlay, one mode at a time."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = "kdtree-demo"
ON_CPU = ("compose.yaml", "compose.cpu.yaml")
ON_GPUS = ("compose.yaml",)
ON_GPUS_BY_CDI = ("compose.yaml", "compose.cdi.yaml")
SERVICE = "server"
MODELS_IN_CONTAINER = "/root/.cache/huggingface"  # where compose.yaml mounts KDTREE_MODELS
HEALTHY_SECONDS = 300
SETTLED_SECONDS = 30
KEPT_SECONDS = 60
REPORT_CODES = (0, 2, 3)  # on is justified, not yet, no


class StackError(RuntimeError):
    """The server does not come up or does not answer as it should; the text is one line."""


class Stack:
    """One Compose project. `up`, ask `url`, `ranks`, `down`; `down` is right at any time.

    Args:
        root: The checkout.
        image: The image to serve with.
        models: Folder on the host that holds the model's.
        model: The model's folder name.
        arguments: Server arguments beside those of the Compose files.
        files: The Compose files.
        healthy_seconds: How long a start may take.
    """

    def __init__(
        self,
        root: Path,
        image: str,
        models: Path,
        model: str,
        arguments: str,
        files: tuple[str, ...] = ON_CPU,
        healthy_seconds: float = HEALTHY_SECONDS,
    ):
        self._files = [f"--file={root / name}" for name in files]
        self._healthy_seconds = healthy_seconds
        self._port = _free_port()
        # No setting of the user's own reaches the demo: not from the shell, not from .env.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("KDTREE_", "COMPOSE_"))}
        self._environment = environment | {
            "KDTREE_IMAGE": image,
            "KDTREE_MODELS": str(models),
            "KDTREE_MODEL": f"{MODELS_IN_CONTAINER}/{model}",
            "KDTREE_SERVER_ARGS": arguments,
            "KDTREE_LISTEN": f"127.0.0.1:{self._port}",
            "KDTREE_RESTART": "no",
        }
        self._container = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self, mode: str) -> None:
        """Starts the server; it is not ready yet. Raises StackError."""
        self._compose("up", "--detach", "--no-build", "--quiet-pull", environment={"KDTREE_VERIFY": mode})
        self._container = self._compose("ps", "--all", "--quiet", SERVICE).strip()

    def wait_healthy(self, tick: Callable[[str], None]) -> None:
        """Waits until the image's own health check is good and HTTP answers; `tick` gets what the server does now.

        Raises:
            StackError: The container ended, or is not healthy in time.
        """
        deadline = time.monotonic() + self._healthy_seconds
        while time.monotonic() < deadline:
            state = json.loads(self._docker("inspect", "--format={{json .State}}", self._container))
            if state["Status"] != "running":
                raise StackError(f"the server ended with status {state['ExitCode']}")
            health = state["Health"]["Status"]
            if health == "healthy" and self._serves():
                return
            tick(f"{health}: {self.log(1)}")
            time.sleep(1)
        raise StackError(f"the server is not healthy after {self._healthy_seconds:.0f} s")

    def ranks(self) -> list[dict[str, Any]]:
        """What each rank reports, all of it younger than this call; in mode off a rank reports once.

        Raises:
            StackError: A rank is silent.
        """
        asked, deadline = time.time(), time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < deadline:
            status = self._compose("exec", "--no-TTY", SERVICE, "kdtree", "status", "--json")
            ranks: list[dict[str, Any]] = json.loads(status)["ranks"]
            if ranks and all(rank["mode"] == "off" or rank["updated_at"] > asked for rank in ranks):
                return ranks
            time.sleep(0.5)
        raise StackError(f"a rank has not reported for {SETTLED_SECONDS} s")

    def status(self) -> str:
        """What `kdtree status` says. Raises StackError."""
        return self._compose("exec", "--no-TTY", SERVICE, "kdtree", "status")

    def report(self, calls: int) -> str:
        """What `kdtree report` says once `calls` compared calls are on the disk: some seconds after the last.

        Raises:
            StackError: They are not after KEPT_SECONDS.
        """
        command = ("exec", "--no-TTY", SERVICE, "kdtree", "report")
        deadline = time.monotonic() + KEPT_SECONDS
        while time.monotonic() < deadline:
            layers = json.loads(self._compose(*command, "--json", codes=REPORT_CODES))["layers"]
            if sum(layer["compare_calls"] for layer in layers) >= calls:
                return self._compose(*command, codes=REPORT_CODES)
            time.sleep(1)
        raise StackError(f"what was measured is not on the disk after {KEPT_SECONDS} s")

    def down(self) -> None:
        """Ends the server, if there is one, and removes all that `up` made but the image."""
        # Nothing is under way, and SGLang looks only every five seconds whether it was told to stop.
        self._compose("down", "--volumes", "--remove-orphans", "--timeout", "2")

    def log(self, lines: int) -> str:
        """The end of the server's log; empty where there is no server."""
        done = subprocess.run(
            ["docker", "logs", "--tail", str(lines), self._container],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/model_info", timeout=5):
                return True
        except OSError:
            return False

    def _compose(
        self, *arguments: str, environment: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)
    ) -> str:
        command = [*compose(), f"--project-name={PROJECT}", "--env-file=/dev/null", *self._files, *arguments]
        return _output(command, self._environment | (environment or {}), codes)

    def _docker(self, *arguments: str) -> str:
        return _output(["docker", *arguments], self._environment)


def compose() -> list[str]:
    """Compose: a program inside `ci/engine run`, docker's plugin elsewhere."""
    return ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]


def _output(command: list[str], environment: dict[str, str], codes: tuple[int, ...] = (0,)) -> str:
    # A session of its own: an interrupt from the keyboard must not cut short what cleans up.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode not in codes:
        said = " | ".join(line for line in done.stderr.splitlines() if line.strip())[-600:]
        raise StackError(f"{command[0]} {' '.join(arg for arg in command[1:] if arg[0] != '-')}: {said}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
