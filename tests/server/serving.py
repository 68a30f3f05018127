"""Real SGLang servers on the CPU, as processes of the tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAUNCHER = "kdtree_verify.launch"
SGLANG = "sglang.launch_server"

NGRAM = ("--speculative-algorithm", "NGRAM")
EAGLE = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "2"),
    *("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "4"),
)
# SGLang at 0.5.23 refuses fp8_e4m3 for MLA on a CPU, before any of ours is asked.
FP8 = (*NGRAM, "--kv-cache-dtype", "fp8_e5m2")

# What the stand-in image sets too: one BLAS thread for the interpreter's small products, no spinning.
CPU_ENVIRONMENT = {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# Compiling a few small helpers takes longer than they do, and Python's headers, which a bare machine has not.
CPU_ENVIRONMENT |= {"TORCH_COMPILE_DISABLE": "1"}
READY_SECONDS = 240.0
END_SECONDS = 90.0


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Attributes:
        model: The model's folder.
        folder: An empty folder for the state files and the log.
        mode: KDTREE_VERIFY.
        arguments: Server arguments beside those that every CPU server here gets.
        module: LAUNCHER, or SGLANG: without the launcher.
        environment: Variables on top of the tests' own.
        attention: --attention-backend, None for none.
    """

    model: Path
    folder: Path
    mode: str
    arguments: tuple[str, ...] = NGRAM
    module: str = LAUNCHER
    environment: Mapping[str, str] = field(default_factory=dict)
    attention: str | None = "triton"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def command(self, port: int) -> list[str]:
        attention = ["--attention-backend", self.attention] if self.attention else []
        return [
            *(sys.executable, "-W", "ignore", "-m", self.module),
            *("--model-path", str(self.model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
            *attention,
            *("--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-cuda-graph"),
            *("--mem-fraction-static", "0.3", "--max-total-tokens", "2048", "--max-running-requests", "4"),
            *("--skip-server-warmup", "--sleep-on-idle"),
            *self.arguments,
        ]

    def process_environment(self) -> dict[str, str]:
        own = {
            "KDTREE_VERIFY": self.mode,
            "KDTREE_DEVICE": "cpu",
            "KDTREE_STATE_DIR": str(self.state),
            "KDTREE_LOG_INTERVAL": "1",
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
        return inherited | CPU_ENVIRONMENT | own | dict(self.environment)


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
        return self.launch.log.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Raises Ended, or TimeoutError, where it never serves."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Ended(f"status {self.process.returncode}\n{self.log()[-3000:]}")
            if self._answers():
                return
            time.sleep(0.3)
        raise TimeoutError(f"not up after {READY_SECONDS} s\n{self.log()[-3000:]}")

    def wait_end(self) -> int:
        """The exit status; negative for a signal."""
        return self.process.wait(END_SECONDS)

    def ranks(self) -> dict[str, dict[str, Any]]:
        """The ranks' state files by rank name."""
        documents = [json.loads(path.read_text()) for path in self.launch.state.glob("rank-*.json")]
        return {document["rank"]["name"]: document for document in documents}

    def _answers(self) -> bool:
        # /model_info generates nothing; it answers when the ranks are up.
        try:
            with urllib.request.urlopen(f"{self.url}/model_info", timeout=5):
                return True
        except OSError:
            return False


@contextmanager
def started(launch: Launch) -> Iterator[Server]:
    """Starts a server in a process group of its own, which is gone on leaving."""
    launch.folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with launch.log.open("wb") as log:
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


def run_to_end(launch: Launch) -> tuple[int, str]:
    """Starts a server that is to refuse; its exit status and its log. Fails where it serves instead."""
    with started(launch) as server:
        try:
            server.wait_ready()
        except Ended:
            return server.wait_end(), server.log()
        raise AssertionError(f"the server serves\n{server.log()[-3000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
