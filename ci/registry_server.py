"""A container registry as a process on loopback, which Docker trusts without TLS, for the tests.

Its binary is the one that ci/registry fetched, or the machine's own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "registry"
_FETCHED = FOLDER / "root" / "usr" / "bin" / "docker-registry"
_LISTENS = re.compile(r"listening on (127\.0\.0\.1:\d+)")
_START_SECONDS = 30.0


def binary() -> str | None:
    """The path of docker-registry; None where there is none."""
    return str(_FETCHED) if _FETCHED.exists() else shutil.which("docker-registry")


@dataclass(frozen=True)
class Registry:
    """A registry that runs."""

    address: str
    """Host and port, as an image's name begins: f"{address}/name@sha256:..."."""
    log: Path
    """What it says, one line a request: what a test may ask whether something was fetched or sent."""


@contextmanager
def running(folder: Path, *, port: int = 0, read_only: bool = False, deletes: bool = False) -> Iterator[Registry]:
    """A registry whose images lie in the folder: what is there is served, what is pushed stays for the next one.

    Args:
        folder: Of its own; made where it is not there.
        port: One to listen on again; 0 for one that is free.
        read_only: Every push is answered with 405.
        deletes: DELETE of a manifest by its digest works, as a registry prunes; else it is answered with 405.

    Raises:
        FileNotFoundError: There is no docker-registry here.
        TimeoutError: It does not start.
    """
    program = binary()
    if program is None:
        raise FileNotFoundError("docker-registry")
    folder.mkdir(parents=True, exist_ok=True)
    config, log = folder / "config.yml", folder / "registry.log"
    config.write_text(json.dumps(_config(folder / "images", port, read_only, deletes)))
    with log.open("wb") as output:
        process = subprocess.Popen([program, "serve", config], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Registry(_address(process, log), log)
    finally:
        process.kill()
        process.wait()


def _config(images: Path, port: int, read_only: bool, deletes: bool) -> dict[str, object]:
    """The configuration; JSON is YAML."""
    storage = {
        "filesystem": {"rootdirectory": str(images)},
        "delete": {"enabled": deletes},
        "maintenance": {"readonly": {"enabled": read_only}},
    }
    return {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": storage,
        "http": {"addr": f"127.0.0.1:{port}"},
    }


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """What it listens on, by its own word."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if said := _LISTENS.search(log.read_text(errors="replace")):
            return said[1]
        time.sleep(0.02)
    raise TimeoutError(log.read_text(errors="replace")[-3000:])
