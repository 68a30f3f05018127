"""compose.yaml's request for GPUs reaches the container's first process; without a GPU the engine says so.

The engine with the request's other half is a private one whose NVIDIA hook hands over no device (`--gpu-hook`).
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from engine_debs import Debs, DebsError

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
TAG = "kdtree-test/environment"
# Raising limits takes a capability that root may lack where the tests run; what is tested is the GPUs.
OVERRIDE = "services: {server: {ulimits: !reset null, healthcheck: !reset null}}\n"


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """A root filesystem of one static program, that can tell its environment."""
    try:
        root = Debs(tmp_path / "debs").unpack({"busybox-static": "bookworm"})
    except DebsError as error:
        pytest.skip(str(error))
    (tmp_path / "override.yaml").write_text(OVERRIDE)
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(root / "bin" / "busybox", "busybox")
    return tmp_path / "root.tar"


def up(tarball: Path, *engine: str, overlay: str = "") -> subprocess.CompletedProcess[str]:
    """compose.yaml's server with an image that prints its environment and its devices, up to its end and down again."""
    files = f"-f compose.yaml {overlay and f'-f {overlay}'} -f {tarball.parent}/override.yaml"
    program = "/busybox env; /busybox ls /dev"
    script = f"""
        docker import --change 'ENTRYPOINT ["/busybox", "sh", "-c", "{program}"]' {tarball} {TAG} >/dev/null
        compose="docker-compose -p kdtree-gpu --env-file=/dev/null {files}"
        $compose up --no-build --no-log-prefix --abort-on-container-exit; status=$?
        $compose down --volumes 2>/dev/null
        docker image rm {TAG} >/dev/null
        exit $status
    """
    settings = {"KDTREE_IMAGE": TAG, "KDTREE_MODEL": "m", "KDTREE_LISTEN": "127.0.0.1:0", "KDTREE_RESTART": "no"}
    command = [*engine, "sh", "-c", script]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root")
def test_the_request_reaches_the_process(tarball: Path) -> None:
    done = up(tarball, "ci/engine", "run", "--gpu-hook")
    assert done.returncode == 0, done.stderr
    assert "NVIDIA_VISIBLE_DEVICES=all" in done.stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root")
def test_by_cdi_the_devices_are_handed_over(tarball: Path) -> None:
    done = up(tarball, "ci/engine", "run", "--gpu-hook", overlay="compose.cdi.yaml")
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert "nvidia0" in printed
    assert "NVIDIA_VISIBLE_DEVICES=void" in printed


def test_an_engine_without_gpus_refuses(tarball: Path) -> None:
    runtimes = subprocess.run(["docker", "info"], capture_output=True, text=True, check=True).stdout
    if "nvidia" in runtimes:
        pytest.skip("this engine has an NVIDIA runtime")
    done = up(tarball)
    assert done.returncode != 0
    assert "could not select device driver" in done.stderr
