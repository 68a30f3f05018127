"""What the server tests share: the demo's model, a library that breaks when told to, and one server a mode.

A server takes 10 to 20 s to start on two cores, so each is asked everything once, by a session fixture; the tests
look at what it said.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo import conversation
from demo.conversation import Answer
from serving import EAGLE, LAUNCHER, SGLANG, Launch, Server, started

ROOT = Path(__file__).resolve().parents[2]
REAL_LIBRARY = ROOT / "build" / "lib" / "libkdtree_verify_host.so"
REQUESTS = (*conversation.REQUESTS[:2], conversation.REQUESTS[-1])


@dataclass(frozen=True)
class Outcome:
    """What one server said and did.

    Attributes:
        answers: To REQUESTS.
        ranks: The state files after them, by rank name.
        faulty_answers: To the first of REQUESTS, asked again with the library broken; empty where it stayed whole.
        faulty_ranks: The state files after that.
        mapped: For each rank name, the kernel libraries its process has mapped.
        killed_status: The server's exit status after kill -9 of a rank; None where none was killed.
        log: All that the server printed.
    """

    answers: list[Answer]
    ranks: dict[str, dict[str, Any]]
    faulty_answers: list[Answer]
    faulty_ranks: dict[str, dict[str, Any]]
    mapped: dict[str, list[str]]
    killed_status: int | None
    log: str


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, ROOT / "ci" / "demo" / "model.py", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def faulty_library_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library folder whose host library breaks while the file in KDTREE_TEST_FAULT exists."""
    folder = tmp_path_factory.mktemp("faulty")
    source = Path(__file__).with_name("faulty_library.c")
    subprocess.run(
        [
            *("gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f'-DREAL="{REAL_LIBRARY}"'),
            *("-I", ROOT / "kernel" / "include", source, "-o", folder / REAL_LIBRARY.name, "-ldl"),
        ],
        check=True,
    )
    return folder


@pytest.fixture(scope="session")
def new_launch(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Launch]:
    """`new_launch(mode, **fields of Launch)` with a folder of its own."""
    return lambda mode, **fields: Launch(model, tmp_path_factory.mktemp(f"server-{mode}"), mode, **fields)


@pytest.fixture(scope="session")
def off(new_launch: Callable[..., Launch]) -> Outcome:
    return serve(new_launch("off"), again=True)


@pytest.fixture(scope="session")
def validate(new_launch: Callable[..., Launch], faulty_library_dir: Path, tmp_path_factory: Any) -> Outcome:
    """Without the launcher: the plugin alone."""
    fault = tmp_path_factory.mktemp("switch") / "fault"
    environment = {"KDTREE_LIBRARY_DIR": str(faulty_library_dir), "KDTREE_TEST_FAULT": str(fault)}
    return serve(new_launch("validate", module=SGLANG, environment=environment), fault)


@pytest.fixture(scope="session")
def on(new_launch: Callable[..., Launch], faulty_library_dir: Path, tmp_path_factory: Any) -> Outcome:
    fault = tmp_path_factory.mktemp("switch") / "fault"
    environment = {"KDTREE_LIBRARY_DIR": str(faulty_library_dir), "KDTREE_TEST_FAULT": str(fault)}
    return serve(new_launch("on", module=LAUNCHER, environment=environment), fault, kill=True)


@pytest.fixture(scope="session")
def on_two_ranks(new_launch: Callable[..., Launch]) -> Outcome:
    launch = new_launch("on", environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"})
    return serve(Launch(**{**vars(launch), "arguments": (*launch.arguments, "--tp-size", "2")}))


@pytest.fixture(scope="session")
def eagle(new_launch: Callable[..., Launch]) -> Outcome:
    return serve(new_launch("validate", arguments=EAGLE))


def serve(launch: Launch, fault: Path | None = None, *, again: bool = False, kill: bool = False) -> Outcome:
    """Starts a server, asks it, and ends it.

    Args:
        launch: The server.
        fault: The library breaks when this file is made; the first requests are then asked again.
        again: They are asked again without a fault.
        kill: At the end one rank is killed, to see how the server ends.
    """
    with started(launch) as server:
        server.wait_ready()
        answers = conversation.hold(server.url, REQUESTS)
        ranks = settled(server)
        mapped = {name: mapped_libraries(document["pid"]) for name, document in ranks.items()}
        faulty_answers: list[Answer] = []
        if fault is not None:
            fault.touch()
        if fault is not None or again:
            # The prefix cache holds what the whole kernel computed; everybody asks with an empty one.
            urllib.request.urlopen(f"{server.url}/flush_cache", data=b"", timeout=30).close()
            faulty_answers = conversation.hold(server.url, REQUESTS[:1])
        faulty_ranks = settled(server)
        status = None
        if kill:
            victim = next(iter(ranks.values()))["pid"]
            subprocess.run(["kill", "-KILL", str(victim)], check=True)
            status = server.wait_end()
        return Outcome(answers, ranks, faulty_answers, faulty_ranks, mapped, status, server.log())


def settled(server: Server) -> dict[str, dict[str, Any]]:
    """The ranks' state files, written after now. In mode off they are written once."""
    now, deadline = time.time(), time.monotonic() + 30
    while time.monotonic() < deadline:
        ranks = server.ranks()
        if ranks and (server.launch.mode == "off" or all(rank["updated_at"] > now for rank in ranks.values())):
            return ranks
        time.sleep(0.2)
    raise TimeoutError(f"the ranks' state files are not renewed: {ranks}")


def mapped_libraries(pid: int) -> list[str]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return sorted({line.split()[-1] for line in maps.splitlines() if "libkdtree_verify" in line})
