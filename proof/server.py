"""A SGLang server as a process of ours: started, waited for, looked at, ended. Nothing of it is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

END_SECONDS = 90.0
SETTLED_SECONDS = 60.0


class Launch(Protocol):
    """How a server is started.

    Attributes:
        folder: Its own, for the state files and the log; made if it is not there.
        mode: KDTREE_VERIFY.
        ready_seconds: How long it may take to serve.
    """

    @property
    def folder(self) -> Path: ...
    @property
    def mode(self) -> str: ...
    @property
    def ready_seconds(self) -> float: ...
    def command(self, port: int) -> list[str]:
        """The process's arguments."""

    def process_environment(self) -> dict[str, str]:
        """All of its environment; KDTREE_STATE_DIR is state_of(launch)."""


def log_of(launch: Launch) -> Path:
    """Where everything that the server prints goes."""
    return launch.folder / "server.log"


def state_of(launch: Launch) -> Path:
    """The folder of its ranks' state files."""
    return launch.folder / "state"


class Ended(Exception):
    """The server's process ended before it served."""


@dataclass
class Server:
    """A server that was started."""

    launch: Launch
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return log_of(self.launch).read_text(errors="replace")

    def wait_ready(self) -> None:
        """Raises Ended, or TimeoutError, where it never serves."""
        self.wait_answers(200)

    def wait_answers(self, status: int) -> None:
        """As wait_ready, where a server with a key answers 401 to who has none."""
        deadline = time.monotonic() + self.launch.ready_seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Ended(f"status {self.process.returncode}\n{self.log()[-3000:]}")
            if self._answers(status):
                return
            time.sleep(0.3)
        raise TimeoutError(f"not up after {self.launch.ready_seconds} s\n{self.log()[-3000:]}")

    def wait_end(self) -> int:
        """The exit status; negative for a signal."""
        return self.process.wait(END_SECONDS)

    def ranks(self) -> dict[str, dict[str, Any]]:
        """The ranks' state files by rank name."""
        documents = [json.loads(path.read_text()) for path in state_of(self.launch).glob("rank-*.json")]
        return {document["rank"]["name"]: document for document in documents}

    def settled(self) -> dict[str, dict[str, Any]]:
        """The ranks' state files, written after now; in mode off they are written once. Raises TimeoutError."""
        now, deadline = time.time(), time.monotonic() + SETTLED_SECONDS
        ranks: dict[str, dict[str, Any]] = {}
        while time.monotonic() < deadline:
            ranks = self.ranks()
            if ranks and (self.launch.mode == "off" or all(rank["updated_at"] > now for rank in ranks.values())):
                return ranks
            time.sleep(0.2)
        raise TimeoutError(f"the ranks' state files are not renewed since {now}: {ranks}\n{self.log()[-3000:]}")

    def flush_cache(self) -> None:
        """Forgets what the prefix cache holds."""
        urllib.request.urlopen(f"{self.url}/flush_cache", data=b"", timeout=30).close()

    def _answers(self, status: int) -> bool:
        # /model_info generates nothing; it answers when the ranks are up.
        try:
            with urllib.request.urlopen(f"{self.url}/model_info", timeout=5) as response:
                return bool(response.status == status)
        except urllib.error.HTTPError as error:
            return error.code == status
        except OSError:
            return False


@contextmanager
def started(launch: Launch) -> Iterator[Server]:
    """Starts a server in a process group of its own, which is gone on leaving."""
    launch.folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with log_of(launch).open("wb") as log:
        process = subprocess.Popen(
            launch.command(port),
            env=launch.process_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=launch.folder,
            start_new_session=True,
        )
    try:
        yield Server(launch, process, port)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
