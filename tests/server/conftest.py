"""What the server tests share: the demo's model, a library that breaks when told to, and one server a mode.

A server takes 10 to 20 s to start on two cores, so each is asked everything once, by a session fixture; the tests
look at what it said.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outcome import REQUESTS, Outcome, serve
from serving import EAGLE, FP8, LAUNCHER, METRICS, NGRAM, SGLANG, Launch

ROOT = Path(__file__).resolve().parents[2]
REAL_LIBRARY = ROOT / "build" / "lib" / "libkdtree_verify_host.so"


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
    return serve(new_launch("off", arguments=(*NGRAM, METRICS)), again=True)


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
    return serve(Launch(**{**vars(launch), "arguments": (*launch.arguments, "--tp-size", "2", METRICS)}))


@pytest.fixture(scope="session")
def fp8(new_launch: Callable[..., Launch]) -> dict[str, Outcome]:
    """A server with an fp8 KV cache for each mode, asked the first requests."""
    modes = ("off", "validate", "on")
    return {mode: serve(new_launch(mode, arguments=FP8), requests=REQUESTS[:2]) for mode in modes}


@pytest.fixture(scope="session")
def eagle(new_launch: Callable[..., Launch]) -> Outcome:
    """The first requests only: drafting is interpreted too, and slow."""
    return serve(new_launch("validate", arguments=(*EAGLE, METRICS)), requests=REQUESTS[:2], checks=True)
