"""`ci/pins verify`, `newer` and `update` against a registry on loopback with nightlies made by hand."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import registry_server
from cutting_proxy import cut_after
from kdtree_verify import contract
from oci.errors import RegistryError
from pinning import change, check, cli, lockfile, nightlies, relock, update, upstream, verify
from registry_server import Registry
from small_images import Pushed, layer, push

pytestmark = pytest.mark.skipif(registry_server.binary() is None, reason="no docker-registry (ci/registry fetches it)")

ROOT = Path(__file__).resolve().parents[2]
PINS = lockfile.load()
PINNED = PINS["images"]["sglang"]
PREFIX = "nightly-dev-cu13"
SOURCE = "sgl-workspace/sglang/python/sglang"
READ = (
    "srt/layers/attention/triton_backend.py",
    "srt/layers/radix_attention.py",
    "srt/model_executor/model_runner.py",
    "kernels/ops/attention/extend_attention.py",
)
GOOD, GOOD_COMMIT = f"{PREFIX}-20261005-f70e8c68", "f70e8c68"
PADDING = random.Random(0).randbytes(300_000)  # that a connection takes a while for


def sources() -> dict[str, bytes]:
    """What the contract reads of the installed SGLang, by its path in the image."""
    return {f"{SOURCE}/{name}": (contract.installed_root() / name).read_bytes() for name in READ}


def labels(commit: str) -> dict[str, str]:
    whole = commit.ljust(40, "0")
    return {"ai.sglang.build.commit": whole, "org.opencontainers.image.revision": whole}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def registry(folder: Path) -> Iterator[Registry]:
    with registry_server.running(folder, deletes=True) as running:
        yield running


@pytest.fixture(scope="module")
def good(registry: Registry) -> Pushed:
    """A nightly that is as expected, between others that are no newer nightlies of the prefix."""
    name = f"{registry.address}/lmsysorg/sglang"
    good = [layer({f"{SOURCE}/old.py": b""}), layer(sources()), layer({"etc/x": PADDING})]
    for tag in ("v0.5.22", PINNED["tag"], f"{PREFIX}-20260901-00000000", "nightly-dev-20261107-11111111", "latest"):
        push(name, tag, [layer({"etc/x": tag.encode()})], labels(tag[-8:]))
    return push(name, GOOD, good, labels(GOOD_COMMIT))


@pytest.fixture(autouse=True)
def mirror(registry: Registry, good: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDTREE_MIRROR", registry.address)
    monkeypatch.setattr(update, "DIFF", ROOT / "build" / f"pins-update-{tmp_path.name}.diff")


@pytest.fixture
def diff() -> Iterator[Path]:
    """Where the diff is to be; an older one is there."""
    update.DIFF.write_text("the last one\n")
    yield update.DIFF
    update.DIFF.unlink()


@pytest.fixture
def nightly(registry: Registry, folder: Path) -> Iterator[Callable[..., Pushed]]:
    """Pushes a nightly; it is gone after the test, tag and all."""
    tags = folder / "images/docker/registry/v2/repositories/lmsysorg/sglang/_manifests/tags"
    made = []

    def make(tag: str, files: dict[str, bytes], said: dict[str, str]) -> Pushed:
        made.append(tag)
        return push(f"{registry.address}/lmsysorg/sglang", tag, [layer(files)], said)

    yield make
    for tag in made:
        shutil.rmtree(tags / tag, ignore_errors=True)


def stored(folder: Path, digest: str) -> Path:
    """The file in which the registry keeps a blob or manifest."""
    name = digest.partition(":")[2]
    return folder / "images/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


def refused(diff: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line of an update that must not happen: no diff, no pin changes."""
    before = lockfile.PINS_FILE.read_bytes()
    code = cli.main(["update", "--no-tests", *arguments])
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("pins: reading layer ")]
    assert diff.read_text() == "the last one\n"
    assert lockfile.PINS_FILE.read_bytes() == before
    assert len(said) == 1
    return code, said[0]


def test_newer_nightlies_of_the_prefix_are_listed(
    nightly: Callable[..., Pushed], capsys: pytest.CaptureFixture[str]
) -> None:
    nightly(f"{PREFIX}-20261105-22222222", {"x": b""}, {})
    assert cli.main(["newer"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{PREFIX}-20261105-22222222", GOOD]


def test_the_change_is_one_diff_that_keeps_to_its_pins(
    good: Pushed, diff: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["update", "--no-tests"]) == 0
    assert capsys.readouterr().out == f"git apply build/{diff.name}\n"
    said, _, changes = diff.read_text().partition("\n--- ")
    assert f"Image: lmsysorg/sglang@{good.index}" in said
    assert "Contract (signatures, the attention call, what the decline list reads, the KV pool): as expected" in said
    added = [line[1:].split()[0].partition("=")[0] for line in changes.splitlines() if line.startswith("+")]
    lock, dockerfile = ["++", "tag", "digest", "platform", "manifest", "recorded", "commit"], ["++", "FROM", "ARG"]
    assert added == lock + dockerfile

    for name in ("ci", "docker", "deploy", "kernel/include", "patch/src/kdtree_verify"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("compose*.yaml"), ROOT / ".pre-commit-config.yaml"):
        if file.exists():
            shutil.copy(file, tmp_path)
    if (ROOT / ".github").exists():
        shutil.copytree(ROOT / ".github", tmp_path / ".github")
    subprocess.run(["git", "apply", diff], cwd=tmp_path, env=os.environ | {"GIT_CEILING_DIRECTORIES": "/"}, check=True)
    assert [*check.complaints(tmp_path)] == []
    moved = lockfile.load(tmp_path / "ci" / "pins.toml")
    assert moved["images"]["sglang"]["manifest"] == good.manifest
    assert moved["sglang"]["commit"] == GOOD_COMMIT
    assert f"FROM lmsysorg/sglang:{GOOD}@{good.index} AS base" in (tmp_path / "docker/Dockerfile").read_text()


def test_a_change_that_would_not_keep_to_its_pins_is_none(good: Pushed, tmp_path: Path) -> None:
    found = upstream.find(upstream.client(PINNED["name"]), good.index, "linux/amd64")
    nightly = nightlies.parse(GOOD)
    assert nightly is not None
    with pytest.raises(lockfile.PinsError, match=r"the changed files would not keep to pins\.toml: .*digest"):
        change.diff(PINS, nightly, dataclasses.replace(found, digest="sha256:12"), [], tmp_path)


def test_nothing_is_newer(registry: Registry, diff: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    push(f"{registry.address}/none/lmsysorg/sglang", PINNED["tag"], [layer({})], {})
    monkeypatch.setenv("KDTREE_MIRROR", f"{registry.address}/none")
    assert cli.main(["update"]) == 0
    assert capsys.readouterr().out == f"nothing is newer than {PINNED['tag']}\n"
    assert diff.read_text() == "the last one\n"


def test_a_pruned_nightly(
    nightly: Callable[..., Pushed], folder: Path, diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = f"{PREFIX}-20261107-33333333"
    pruned = nightly(tag, sources(), labels("33333333"))
    hexes = pruned.index.partition(":")[2]
    revisions = folder / "images/docker/registry/v2/repositories/lmsysorg/sglang/_manifests/revisions/sha256"
    (revisions / hexes / "link").unlink()
    code, line = refused(diff, capsys)
    assert code == 1
    assert f"{tag}: it was pruned. Fix: another tag, or a mirror" in line
    assert refused(diff, capsys, "nightly-dev-cu13-20270101-44444444")[1].endswith("Fix: one of `ci/pins newer`")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (labels("5555ffff"), "the image is not of commit 55555555: ai.sglang.build.commit=5555ffff"),
        ({"ai.sglang.build.commit": "55555555", "org.opencontainers.image.revision": "5555ffff"}, "is not of commit"),
        ({}, "no label of a commit"),
    ],
)
def test_a_wrong_commit_label(
    said: dict[str, str], words: str, nightly: Callable[..., Pushed], diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly(f"{PREFIX}-20261107-55555555", sources(), said)
    code, line = refused(diff, capsys)
    assert code == 1
    assert words in line


@pytest.mark.parametrize("part", ["index", "manifest", "layer"])
def test_a_wrong_digest(
    part: str, nightly: Callable[..., Pushed], folder: Path, diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = nightly(f"{PREFIX}-20261107-66666666", {**sources(), "etc/y": part.encode()}, labels("66666666"))
    file = stored(folder, {"index": made.index, "manifest": made.manifest, "layer": made.layers[0]}[part])
    content = file.read_bytes()
    place = content.index(b"linux") if part != "layer" and b"linux" in content else len(content) - 1
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    code, line = refused(diff, capsys)
    assert code == 1
    assert "Fix: " in line


def test_an_sglang_that_the_contract_refuses(
    nightly: Callable[..., Pushed], diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = f"{SOURCE}/{READ[0]}"
    other = {**sources(), backend: sources()[backend].replace(b"self.dllm_block_size", b"self.block_size")}
    nightly(f"{PREFIX}-20261107-77777777", other, labels("77777777"))
    code, line = refused(diff, capsys)
    assert code == 78
    assert "lacks what tells whose a call is: dllm_block_size. Fix: adapt the patch" in line


def test_an_sglang_that_the_tests_refuse(
    nightly: Callable[..., Pushed], diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly(f"{PREFIX}-20261107-88888888", sources(), labels("88888888"))  # four files: no test can import it
    assert cli.main(["update"]) == 78
    assert "the patch's tests do not pass: " in capsys.readouterr().err
    assert diff.read_text() == "the last one\n"


def test_an_image_without_sglang(
    nightly: Callable[..., Pushed], diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly(f"{PREFIX}-20261107-99999999", {f"{SOURCE}/x.py": b""}, labels("99999999"))
    assert "the image has no /sgl-workspace/sglang/python/sglang" in refused(diff, capsys)[1]


def test_a_newer_layer_hides_what_lies_below(
    registry: Registry, nightly: Callable[..., Pushed], diff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = f"{PREFIX}-20261107-aaaaaaaa"
    nightly(tag, {}, {})  # so that it goes away
    removed = layer({f"{SOURCE}/srt/layers/.wh.radix_attention.py": b""})
    push(f"{registry.address}/lmsysorg/sglang", tag, [layer(sources()), removed], labels("aaaaaaaa"))
    code, line = refused(diff, capsys)
    assert code == 78
    assert "sglang.srt.layers.radix_attention cannot be read" in line


def test_an_image_of_another_platform(registry: Registry, good: Pushed) -> None:
    repository = upstream.client(PINNED["name"])
    of_arm = upstream.find(repository, good.index, "linux/arm64").manifest.digest
    with pytest.raises(RegistryError, match=r"is for linux/arm64, not linux/amd64\. Fix: "):
        upstream.find(repository, of_arm, "linux/amd64")
    with pytest.raises(RegistryError, match=r"has nothing for linux/riscv64 there\. Fix: "):
        upstream.find(repository, good.index, "linux/riscv64")


@pytest.mark.parametrize("answered", [0, 400, 3_000, 200_000])
def test_a_network_that_is_cut(
    answered: int, registry: Registry, diff: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_after(registry.address, answered) as address:
        monkeypatch.setenv("KDTREE_MIRROR", address)
        code, line = refused(diff, capsys)
    assert code == 69
    assert "the registry does not answer: " in line
    assert "Fix: the network" in line


def test_a_disk_that_is_full(diff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        code = cli.main(["update", "--no-tests"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert code == 69
    assert (
        "kdtree: cannot be written or read: [Errno 27] File too large. Fix: room and rights" in capsys.readouterr().err
    )
    assert diff.read_text() == "the last one\n"


def test_a_registry_that_is_not_there(
    diff: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDTREE_MIRROR", "127.0.0.1:1")
    code, line = refused(diff, capsys)
    assert code == 69
    assert "the registry does not answer: 127.0.0.1:1: " in line


@pytest.fixture
def pinned_there(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of pins.toml, every image of which is in the registry."""
    file = tmp_path / "pins.toml"
    text = lockfile.PINS_FILE.read_text()
    for image in PINS["images"].values():
        name = f"{registry.address}/pinned/{image['name']}"
        made = push(name, image["tag"], [layer({"etc/x": image["name"].encode()})], labels(PINS["sglang"]["commit"]))
        text = text.replace(image["digest"], made.index)
        if image["manifest"] != "unknown":
            text = text.replace(image["manifest"], made.manifest)
    file.write_text(text)
    monkeypatch.setenv("KDTREE_MIRROR", f"{registry.address}/pinned")
    for module in (lockfile, relock, verify):
        monkeypatch.setattr(module, "PINS_FILE", file)
    monkeypatch.setattr(cli, "load", lambda: lockfile.load(file))
    return file


def test_what_is_there_as_pinned_is_said_and_filled_in(pinned_there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--write"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(PINS["images"])
    assert "unknown" not in {image["manifest"] for image in lockfile.load(pinned_there)["images"].values()}


def test_what_is_not_as_pinned_is_a_line_each(pinned_there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = pinned_there.read_text()
    images = lockfile.load(pinned_there)["images"]
    text = text.replace(images["grafana"]["digest"], "sha256:" + "0" * 64)
    text = text.replace(images["sglang-stable"]["manifest"], "sha256:" + "1" * 64)
    pinned_there.write_text(text.replace('commit = "cae69be5"', 'commit = "cae69be6"'))
    assert cli.main(["verify", "--write"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert "[images.sglang] the image is not of commit cae69be6" in said[0]
    assert "[images.sglang-stable] manifest is " in said[1]
    assert "[images.grafana] no such image: " in said[2]
