"""SGLang's Triton backend runs under Triton's interpreter here; a test that patches it leaves it as it was."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reporters_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reporters end with the test, not with the process: hundreds that look on would slow all that follows."""
    from kdtree_verify.rank import reporter

    over, run = threading.Event(), reporter.Reporter._run

    def sleep(seconds: float) -> None:
        if over.wait(seconds):
            raise SystemExit

    def run_until_over(told: reporter.Reporter) -> None:
        with suppress(SystemExit):
            run(told)

    monkeypatch.setattr(reporter.Reporter, "_run", run_until_over)
    monkeypatch.setattr(reporter, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    yield
    over.set()
    for thread in threading.enumerate():
        if thread.name == "kdtree-reporter":
            thread.join(timeout=10)
            assert not thread.is_alive()


@pytest.fixture
def arm(tmp_path: Path, reporters_end: None) -> Iterator[Callable[..., Any]]:
    """`arm(mode, **config)` patches TritonAttnBackend as the plugin would, and returns the plugin's Process."""
    from sglang.srt.layers.attention import triton_backend

    from kdtree_verify import config
    from kdtree_verify.rank.process import Process

    cls = triton_backend.TritonAttnBackend
    stock = {name: cls.__dict__[name] for name in ("__init__", "forward_extend")}

    def patch(mode: str, **changes: Any) -> Process:
        environment = {**os.environ, "KDTREE_VERIFY": mode, "KDTREE_DEVICE": "cpu", "KDTREE_STATE_DIR": str(tmp_path)}
        environment["KDTREE_EVIDENCE_DIR"] = str(tmp_path / "evidence")
        process = Process(replace(config.from_environment(environment), **changes))
        process.patch_backend(triton_backend)
        return process

    yield patch
    for name, function in stock.items():
        setattr(cls, name, function)


@pytest.fixture(scope="session")
def defective_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a host library that is right until KDTREE_DEFECT names a defect."""
    from kdtree_verify.config import Device, from_environment
    from kdtree_verify.native.library import FILE_NAMES

    directory = tmp_path_factory.mktemp("defective")
    name = FILE_NAMES[Device.CPU]
    source = Path(__file__).with_name("defective_library.c")
    command = ["gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, f"-I{ROOT / 'kernel' / 'include'}", source, "-o", directory / name, "-ldl"], check=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KDTREE_DEFECT_OF", str((from_environment().library_dir / name).resolve()))
        yield directory
