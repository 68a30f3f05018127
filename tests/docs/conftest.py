"""What the tests of the pages ask: each SGLang, by a process of its own, and Compose."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import documents
from engine_clients import compose
from engine_private import EngineError
from probe import Probe

VERSIONS = {"0.5.23": None, "0.5.21": documents.ROOT / "build" / "sglang-0.5.21"}


@pytest.fixture(scope="session", params=VERSIONS)
def probe(request: pytest.FixtureRequest) -> Iterator[Probe]:
    beside = VERSIONS[request.param]
    if beside is not None and not beside.is_dir():
        pytest.skip(f"ci/venv has not unpacked SGLang {request.param}")
    paths = [str(beside) if beside else "", os.environ.get("PYTHONPATH", "")]
    probe = Probe(request.param, os.pathsep.join(filter(None, paths)))
    yield probe
    probe.end()


@pytest.fixture(scope="session")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """`resolve(settings, overlay)`: compose.yaml with a `.env` of this text and an overlay, as Compose reads it."""
    try:
        binary = compose(documents.ROOT / "build")
    except EngineError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("compose")
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def config(settings: str, overlay: str = "") -> dict[str, Any]:
        if (settings, overlay) in known:
            return known[settings, overlay]
        (folder / "settings.env").write_text(settings + "\n")
        (folder / "overlay.yaml").write_text(overlay or "services: {}\n")
        command = [binary, f"--env-file={folder / 'settings.env'}", f"--project-directory={documents.ROOT}"]
        command += [f"--file={documents.ROOT / 'compose.yaml'}", f"--file={folder / 'overlay.yaml'}"]
        done = subprocess.run(
            [*command, "config", "--format=json"],
            env={"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:9"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        known[settings, overlay] = json.loads(done.stdout)
        return known[settings, overlay]

    return config
