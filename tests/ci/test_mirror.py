"""ci/mirror from one loopback registry to another: the digest stays, and a build can stand on the copy by it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry_server
from cutting_proxy import cut_after
from imaging import build, recipe
from oci import names
from oci.client import Client
from pinning import lockfile, mirror
from registry_server import Registry
from small_images import Pushed, gunzipped, layer, push

pytestmark = pytest.mark.skipif(registry_server.binary() is None, reason="no docker-registry (ci/registry fetches it)")

ROOT = Path(__file__).resolve().parents[2]
NAME, TAG = "lmsysorg/sglang", "nightly-dev-cu13-20260930-cae69be5"
FILES = {"etc/kdtree-base": b"the base\n", "etc/padding": random.Random(1).randbytes(200_000)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry_server.running(tmp_path_factory.mktemp("source")) as running:
        yield running


@pytest.fixture(scope="module")
def pushed(source: Registry) -> Pushed:
    return push(f"{source.address}/{NAME}", TAG, [layer(FILES), layer({"etc/more": b"x"})], {})


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Registry]:
    with registry_server.running(tmp_path / "target") as running:
        yield running


@pytest.fixture(autouse=True)
def pins(source: Registry, pushed: Pushed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock pins what is in the source registry."""
    table = lockfile.load()
    table["images"]["sglang"]["digest"] = pushed.index
    monkeypatch.setattr(lockfile, "load", lambda: table)
    monkeypatch.setenv("KDTREE_MIRROR", source.address)


def run(prefix: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = mirror.main([prefix, "sglang"])
    out, err = capsys.readouterr()
    return code, out, "".join(line for line in err.splitlines() if not line.endswith(" bytes"))


def test_the_digest_stays_and_every_platform_comes_along(
    pushed: Pushed, target: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(f"{target.address}/mine/", capsys)
    assert (code, out) == (0, f"export KDTREE_MIRROR={target.address}/mine\n")
    copy = Client(names.repository(f"{target.address}/mine/{NAME}"))
    assert copy.digest(TAG) == pushed.index
    index = copy.manifest(pushed.index).parsed()
    assert {entry["platform"]["architecture"] for entry in index["manifests"]} == {"amd64", "arm64"}
    assert all(copy.has_blob(digest) for digest in pushed.layers)
    sent = target.log.read_text().count('"PUT ')
    assert run(f"{target.address}/mine", capsys)[0] == 0
    assert target.log.read_text().count('"PUT ') - sent == 4  # the manifests again, and no blob


def test_a_build_takes_the_bases_from_the_mirror_by_digest(monkeypatch: pytest.MonkeyPatch, pushed: Pushed) -> None:
    monkeypatch.setenv("KDTREE_MIRROR", "registry.example/mine/")
    pins = lockfile.load()
    cuda = lockfile.get(pins, "images.cuda-devel")
    assert mirror.contexts(pins) == {
        f"{NAME}:{TAG}@{pushed.index}": f"docker-image://registry.example/mine/{NAME}:{TAG}@{pushed.index}",
        cuda: f"docker-image://registry.example/mine/{cuda}",
    }
    monkeypatch.delenv("KDTREE_MIRROR")
    assert mirror.contexts(pins) == {}


def test_ci_image_builds_on_the_mirror_for_the_pinned_platform(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker-buildx"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/arguments\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("KDTREE_MIRROR", "registry.example/mine")
    contexts = recipe.mirror_contexts()
    build.build(ROOT, {}, contexts)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    pinned = f"{NAME}:{TAG}@{pushed.index}"
    assert f"--build-context={pinned}=docker-image://registry.example/mine/{pinned}" in arguments
    assert "--platform=linux/amd64" in arguments
    assert "--network=none" not in arguments
    assert recipe.base(pinned, contexts) == (f"docker.io/{NAME}:{TAG}", pushed.index)


@pytest.mark.docker
def test_a_build_stands_on_the_copy(
    pushed: Pushed, target: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{target.address}/mine", capsys)[0] == 0
    pinned = f"{NAME}:{TAG}@{pushed.index}"
    (tmp_path / "Dockerfile").write_text(f"FROM {pinned} AS base\nFROM scratch\nCOPY --from=base /etc/kdtree-base /\n")
    context = f"--build-context={pinned}=docker-image://{target.address}/mine/{pinned}"
    command = [
        *build.buildx(),
        "build",
        "--platform=linux/amd64",
        f"--output=type=local,dest={tmp_path / 'out'}",
        context,
    ]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "kdtree-base").read_bytes() == FILES["etc/kdtree-base"]


@pytest.mark.parametrize("answered", [0, 2_000, 100_000])
def test_a_network_that_is_cut_leaves_no_tag_and_can_be_gone_on_with(
    answered: int,
    source: Registry,
    pushed: Pushed,
    target: Registry,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cut_after(source.address, answered) as address:
        monkeypatch.setenv("KDTREE_MIRROR", address)
        code, out, line = run(target.address, capsys)
    assert (code, out) == (69, "")
    assert line.startswith("kdtree: the registry does not answer: ")
    copy = Client(names.repository(f"{target.address}/{NAME}"))
    assert copy.digest(TAG) is None
    monkeypatch.setenv("KDTREE_MIRROR", source.address)
    assert run(target.address, capsys)[0] == 0
    assert copy.digest(TAG) == pushed.index


def test_a_pruned_digest(target: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    lockfile.load()["images"]["sglang"]["digest"] = "sha256:" + "0" * 64
    code, _, line = run(target.address, capsys)
    assert code == 1
    assert "no such image: " in line


def test_a_tag_that_is_another_image_there_is_left(target: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    other = push(f"{target.address}/{NAME}", TAG, [layer({"x": gunzipped(layer({}))})], {})
    code, _, line = run(target.address, capsys)
    assert code == 1
    assert f"{TAG} is {other.index}. Fix: another PREFIX; a tag never moves" in line
    assert Client(names.repository(f"{target.address}/{NAME}")).digest(TAG) == other.index


@pytest.mark.parametrize(("arguments", "code"), [([], 64), (["--all"], 64), (["--help"], 0)])
def test_usage(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, ROOT / "ci" / "mirror", *arguments], capture_output=True, text=True)
    assert done.returncode == code
    if code:
        assert done.stderr.startswith("kdtree: bad usage of ci/mirror: ")
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    else:
        assert "ci/mirror HOST/PREFIX" in done.stdout


def test_a_key_that_is_no_image(target: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main([target.address, "none"]) == 1
    assert "pins.toml has no 'images.none'" in capsys.readouterr().err
