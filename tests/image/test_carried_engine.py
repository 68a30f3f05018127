"""ci/gpu-container with an engine: its packs, and the image on a base of this Python, in a carried engine of its own.

The GPU is /dev/null by CDI, and an NVML that tells of an H200. `ci/gpu-container run --rehearse` starts servers, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers import ROOT
from engine_debs import Debs, DebsError
from engine_private import PACKAGES
from fake_driver import build_libcuda
from gpu_container import base, pack, profiles, run
from gpu_container.containers import Docker
from gpu_container.engine import DEVICE, CarriedEngine, write_specification
from gpu_container.scenario import NO_GPU, OTHER_CARD, Scenario
from gpu_container.steps import Record

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine of its own needs root"),
]

LIMIT = 60 << 20  # bytes: what travels at once


def test_the_engines_pack_is_small_and_whole() -> None:
    try:
        Debs(ROOT / "build" / "engine" / "debs").unpack(PACKAGES)
    except DebsError as error:
        pytest.skip(str(error))
    pack.BUILD.mkdir(parents=True, exist_ok=True)
    pack.pack_engine()
    assert pack.ENGINE.stat().st_size < LIMIT
    with tarfile.open(pack.ENGINE) as tar:
        programs = {member.name: member for member in tar if member.isfile()}
    assert set(programs) == {*pack.PROGRAMS, pack.COMPOSE}
    assert all(member.mode & 0o111 for member in programs.values())


@pytest.fixture(scope="module")
def layers(image: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> base.Layers:
    folder = tmp_path_factory.mktemp("layers")
    pack.take_layers(image["id"], image["base"], folder)
    return base.Layers.read(folder)


def test_the_layers_are_this_projects_alone(layers: base.Layers) -> None:
    names = set()
    for file in layers.files:
        with tarfile.open(file) as tar:
            names |= {member.name for member in tar if not member.isdir()}
    assert {"opt/kdtree/entrypoint.py", "opt/kdtree/lib/libkdtree_verify_cuda.so", "usr/bin/tini"} <= names
    assert not any(part in name for part in ("site-packages/torch/", "sgl-workspace/") for name in names)
    assert sum(file.stat().st_size for file in layers.files) < 10 << 20


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver's folder, of which only NVML is there, and as much of libcuda as the entrypoint tries."""
    folder = tmp_path_factory.mktemp("nvidia")
    (folder / "lib64").mkdir()
    source = Path(__file__).with_name("fakes") / "nvml.c"
    target = folder / "lib64" / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", source, "-o", target], check=True)
    build_libcuda(folder / "lib64")
    return folder


@pytest.fixture(scope="module")
def docker(layers: base.Layers, nvidia: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """A carried engine with the image on a base of this Python; the GPU is handed over by `--device`."""
    work = tmp_path_factory.mktemp("work")
    engine = CarriedEngine(Debs(ROOT / "build" / "engine" / "debs").unpack(PACKAGES), work, work / "cdi")
    write_specification(engine.specs, {"/dev/nvidia0": os.devnull}, {"/dev/nvidiactl": os.devnull}, nvidia)
    here = base.machine()
    mounts = here.mounts()
    card = "cccccccc000000000000000000000000,9,0,143360,143000,NVIDIA H200"
    environment = base.environment_of(here, {"LD_LIBRARY_PATH": str(nvidia / "lib64"), "FAKE_CUDA": card})
    config = layers.on(environment)
    packages = [layers.site_packages(), *map(str, here.packages)]
    try:
        engine.start()
        client = engine.client_environment()
        run.put_together(engine, here, layers, config, packages, mounts, client)
        assert run.as_built(run.inspect(client), layers, config)[0]
        yield Docker(client, pack.TAG, mounts)
    finally:
        engine.stop()
        shutil.rmtree(work)
    assert not engine.run.exists()


def refused(docker: Docker, status: int, *options: str) -> str:
    """The one line of a container whose entrypoint refuses its device."""
    code, said = docker.to_its_end("--model-path", "/nowhere", options=options)
    assert code == status, said
    (line,) = [line for line in said.splitlines() if "Fix: " in line]
    return line


def test_the_patch_is_the_images_and_fits(docker: Docker) -> None:
    code, said = docker.to_its_end("python3", "-m", "kdtree_verify.preflight")
    assert code == 0, said
    code, said = docker.to_its_end("python3", "-c", "import kdtree_verify as k; print(k.__file__)")
    assert said.startswith("/opt/sglang/")


def test_the_specifications_nodes_and_driver_are_handed_over(docker: Docker, nvidia: Path) -> None:
    look = f"ls /dev/nvidia0 /dev/nvidiactl {nvidia}/lib64/*; echo $NVIDIA_VISIBLE_DEVICES; touch {nvidia}/written"
    code, said = docker.to_its_end("sh", "-c", look, options=[f"--device={DEVICE}"])
    libraries = [f"{nvidia}/lib64/{name}.so.1" for name in ("libcuda", "libnvidia-ml")]
    assert said.split()[:5] == ["/dev/nvidia0", "/dev/nvidiactl", *libraries, "void"]
    assert code != 0
    assert not (nvidia / "written").exists()


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_another_capability_is_refused_without_the_override(docker: Docker, mode: str) -> None:
    line = refused(docker, OTHER_CARD, f"--device={DEVICE}", f"--env=KDTREE_VERIFY={mode}")
    assert f"KDTREE_VERIFY={mode} needs compute capability 12.0" in line
    assert "NVIDIA H200" in line


@pytest.mark.parametrize("settings", [["KDTREE_VERIFY=off"], ["KDTREE_VERIFY=on", "KDTREE_ALLOW_CC=9.0"]])
def test_off_and_the_override_pass_the_check(docker: Docker, settings: list[str]) -> None:
    given = [f"--env={setting}" for setting in settings]
    code, said = docker.to_its_end("--nonsense", options=[f"--device={DEVICE}", *given])
    assert "compute capability 9.0" in said
    assert "needs compute capability" not in said
    # SGLang itself, of this machine's packages, has the last word.
    assert code == 2
    assert "usage: " in said


def test_without_a_gpu_it_says_so(docker: Docker) -> None:
    assert "no GPU can be seen" in refused(docker, NO_GPU, "--env=KDTREE_VERIFY=validate")


def test_composes_override_changes_network_and_mounts_alone(docker: Docker, tmp_path: Path) -> None:
    override = tmp_path / "override.yaml"
    override.write_text(Scenario(docker, profiles.on_cpu(), Record(tmp_path), tmp_path).override())
    files = [f"--file={path}" for path in (ROOT / "compose.yaml", ROOT / "compose.cdi.yaml", override)]
    command = ["docker-compose", "--env-file=/dev/null", *files, "config", "--format=json"]
    environment = os.environ | {"KDTREE_MODEL": "m"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    server = json.loads(done.stdout)["services"]["server"]
    assert server["network_mode"] == "host"
    assert not server.get("ports")
    assert {str(mount) for mount in docker.mounts} <= {volume["source"] for volume in server["volumes"]}
    assert all(volume["read_only"] for volume in server["volumes"] if volume["source"].startswith("/usr/"))
    assert server["stop_grace_period"] == "1m0s"
    assert "/root/.cache" in {volume["target"] for volume in server["volumes"]}
