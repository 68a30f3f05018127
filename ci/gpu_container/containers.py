"""Containers of the image, through the docker client of the carried engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ContainerError

SETTLED_SECONDS = 30.0
CALL_SECONDS = 60.0
CACHES = {"kdtree_jit-caches": "/root/.cache"}
"""compose.yaml's volumes, by the names that they have in its project: what one server compiles the next finds."""


@dataclass(frozen=True)
class Process:
    """One process of a container: its number inside, its parent's on this machine, its arguments."""

    inside: int
    parent: int
    arguments: tuple[str, ...]


@dataclass
class Docker:
    """The docker client.

    Attributes:
        environment: All of the client's.
        image: What containers are made of.
        mounts: Folders that each gets, read-only and at their own path.
        settings: Variables that each gets.
    """

    environment: Mapping[str, str]
    image: str
    mounts: Sequence[Path]
    settings: Mapping[str, str] = field(default_factory=dict)

    def call(self, *arguments: str, seconds: float = CALL_SECONDS, **environment: str) -> str:
        """The client's output. Raises ContainerError, or TimeoutExpired."""
        # A session of its own: an interrupt from the keyboard must not cut short what cleans up.
        done = subprocess.run(
            ["docker", *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            start_new_session=True,
        )
        if done.returncode != 0:
            words = " ".join(word for word in arguments[:4] if not word.startswith("-"))
            said = " | ".join(line for line in done.stderr.splitlines() if line.strip())[-600:]
            raise ContainerError(f"docker {words} failed with status {done.returncode}: {said}")
        return done.stdout

    def to_its_end(self, *command: str, options: Sequence[str] = (), seconds: float = CALL_SECONDS) -> tuple[int, str]:
        """Runs a container to its end; its exit code, and all that it said."""
        container = self.start(*command, options=options)
        try:
            code = int(self.call("wait", container.identity, seconds=seconds))
            return code, container.log()
        finally:
            container.remove()

    def start(self, *command: str, options: Sequence[str] = ()) -> Container:
        """Starts a container in the background, on the host's network. As root, whose this machine's Python may be."""
        volumes = [f"--volume={mount}:{mount}:ro" for mount in self.mounts]
        variables = [f"--env={name}={value}" for name, value in self.settings.items()]
        given = [*variables, *volumes, *options, self.image, *command]
        return Container(self, self.call("run", "--detach", "--network=host", "--user=0:0", *given).strip())

    def remove_all(self) -> None:
        """Ends and removes every container of the engine."""
        containers = self.call("ps", "--all", "--quiet").split()
        if containers:
            self.call("rm", "--force", *containers)


@dataclass
class Container:
    """A container that was started."""

    docker: Docker
    identity: str

    def inspect(self) -> dict[str, Any]:
        (found,) = json.loads(self.docker.call("inspect", self.identity))
        return dict(found)

    def log(self) -> str:
        """Everything that it said, on either stream."""
        done = subprocess.run(
            ["docker", "logs", self.identity],
            env=dict(self.docker.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CALL_SECONDS,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def wait_healthy(self, seconds: float) -> None:
        """Until the image's own check is good. Raises ContainerError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.inspect()["State"]
            if state["Status"] != "running":
                raise ContainerError(f"it ended with status {state['ExitCode']}: {self.log()[-600:]}")
            if state["Health"]["Status"] == "healthy":
                return
            time.sleep(0.5)
        raise ContainerError(f"not healthy after {seconds:.0f} s: {self.log()[-600:]}")

    def status(self) -> dict[str, Any]:
        """`kdtree status` in it, each rank's report younger than this call; in mode off a rank reports once."""
        asked, deadline = time.time(), time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < deadline:
            found = json.loads(self.docker.call("exec", self.identity, "kdtree", "status", "--json"))
            ranks = found["ranks"]
            if ranks and all(rank["mode"] == "off" or rank["updated_at"] > asked for rank in ranks):
                return dict(found)
            time.sleep(0.3)
        raise ContainerError(f"its ranks have not reported for {SETTLED_SECONDS:.0f} s")

    def processes(self) -> dict[int, Process]:
        """Every process in it, by its number on this machine; of one that has ended nothing."""
        try:
            namespace = os.readlink(f"/proc/{self.inspect()['State']['Pid']}/ns/pid")
        except FileNotFoundError:
            return {}
        found: dict[int, Process] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if os.readlink(entry / "ns/pid") == namespace:
                        found[int(entry.name)] = _process(entry)
                except (OSError, ValueError):
                    continue  # it has ended meanwhile
        return found

    def lacks(self, paths: Iterable[str]) -> list[str]:
        """Those of the paths that it does not have."""
        root = Path(f"/proc/{self.inspect()['State']['Pid']}/root")
        return [path for path in paths if not (root / path.lstrip("/")).exists()]

    def remove(self) -> None:
        """Ends and removes it."""
        self.docker.call("rm", "--force", "--volumes", self.identity)


def _process(entry: Path) -> Process:
    status = (entry / "status").read_text()
    numbers = {name: re.search(rf"^{name}:\s+(.*)$", status, re.MULTILINE) for name in ("NSpid", "PPid")}
    inside, parent = (int(found[1].split()[-1]) if found else 0 for found in numbers.values())
    arguments = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return Process(inside, parent, tuple(arguments))
