"""What is asked of a host: each precondition, missing, is one line that says what to do. Programs are scripts here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from first_building import host
from first_building.site import Pinned, Site
from first_building.step import NotRun, NotSo

Program = Callable[[str, str], None]
CARD = "0, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 580.95.05, 12.0, 97887 MiB"
IMAGE = Pinned("sglang", "127.0.0.1:9/lmsysorg/sglang", "t", f"sha256:{'0' * 64}")


def refused(check: Callable[[Site], object], site: Site) -> str:
    with pytest.raises(NotSo) as error:
        check(site)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            'echo \'{"ServerErrors": ["Cannot connect to the Docker daemon"]}\'; exit 1',
            "the Docker engine does not answer: Cannot connect to the Docker daemon. Fix: start it",
        ),
        (
            "echo 'permission denied while trying to connect' >&2; exit 1",
            "permission denied while trying to connect. Fix: run this as root, or as a user of the group docker",
        ),
        ('echo \'{"ServerVersion": "24.0.9"}\'', "the Docker engine is too old: 24.0.9. Fix: install Docker"),
        ("echo nonsense", "the Docker engine does not answer: nonsense. Fix: "),
    ],
)
def test_an_engine_that_does_not_serve(program: Program, site: Site, script: str, told: str) -> None:
    program("docker", script)
    assert told in refused(host.docker, site)


def test_no_docker(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(host.docker, site).startswith("Docker is missing: no docker on PATH. Fix: install Docker Engine 25")
    assert "buildx" in refused(host.buildx, site)
    assert "Compose is missing" in refused(host.compose, site)


def test_an_old_compose(program: Program, site: Site) -> None:
    program("docker-compose", "echo v2.23.3")
    assert "Compose is too old: v2.23.3. Fix: " in refused(host.compose, site)
    program("docker-compose", "echo v2.24.0-desktop.1")
    assert host.compose(site).summary == "v2.24.0-desktop.1"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "no NVIDIA GPU: NVIDIA-SMI has failed. Fix: install NVIDIA's driver"),
        (
            f"echo '{CARD.replace('580.95.05', '575.57.08')}'",
            "than the image's CUDA: 575.57.08. Fix: install 580",
        ),
        (f"echo '{CARD.replace('12.0', '9.0')}'", "no card of compute capability 12.0: NVIDIA RTX PRO"),
    ],
)
def test_a_driver_that_does_not_serve(program: Program, site: Site, script: str, told: str) -> None:
    program("nvidia-smi", script)
    assert told in refused(host.driver, site)


def test_a_driver_that_serves(program: Program, site: Site) -> None:
    program("nvidia-smi", f"echo '{CARD}'; echo '{CARD.replace('0,', '1,', 1)}'")
    found = host.driver(site)
    assert found.summary == "580.95.05; 2 x NVIDIA RTX PRO 6000 Blackwell Workstation Edition (12.0)"
    assert [gpu["index"] for gpu in found.data["gpus"]] == ["0", "1"]


def test_a_stand_in_run_without_a_card_runs_no_step_for_one(program: Program, site: Site) -> None:
    program("nvidia-smi", "exit 9")
    with pytest.raises(NotRun, match="no NVIDIA GPU"):
        host.driver(replace(site, stand_in=True))


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        ({"Runtimes": {"nvidia": {}, "runc": {}}}, "runtime"),
        ({"CDISpecDirs": ["SPECIFICATIONS"]}, "cdi"),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, "cdi"),
    ],
)
def test_how_gpus_are_handed_over(program: Program, site: Site, engine: dict[str, object], way: str) -> None:
    program("nvidia-ctk", "echo NVIDIA Container Toolkit CLI version 1.17.7")
    (site.out / "nvidia.yaml").touch()
    text = json.dumps(engine).replace("SPECIFICATIONS", str(site.out))
    site.data["docker"] = json.loads(text)
    found = host.toolkit(site)
    assert found.data["way"] == way
    assert "CVE-2025-23266" in found.summary
    program("nvidia-ctk", "echo NVIDIA Container Toolkit CLI version 1.18.0")
    assert "CVE" not in host.toolkit(site).summary


def test_no_toolkit(site: Site) -> None:
    site.data["docker"] = {"Runtimes": {"runc": {}}, "CDISpecDirs": ["/nowhere"]}
    assert "Fix: install NVIDIA's container toolkit" in refused(host.toolkit, site)


def test_no_network(site: Site) -> None:
    found = refused(host.network, replace(site, images=(IMAGE,)))
    assert found.startswith("a registry does not answer: 127.0.0.1:9: ")
    assert "Connection refused. Fix: the network, or a proxy" in found


def test_a_disk_too_small(program: Program, site: Site) -> None:
    program("docker", "exit 1")  # no image is here yet
    site.data["digests"] = {"images": {"sglang": {"bytes": 10**15}}}
    found = refused(host.disk, replace(site, images=(IMAGE,)))
    assert found.startswith("4000010.7 GB of disk are needed for images: ")
    assert "GB are free. Fix: free some" in found
    program("docker", "exit 0")  # it is
    assert "GB free, 10.7 GB needed" in host.disk(replace(site, images=(IMAGE,))).summary
