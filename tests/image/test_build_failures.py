"""A build that fails or is ended, by faults that are really made: tag and report stay those of the old image."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from containers import ROOT
from engine_clients import clients_path
from engine_debs import DebsError
from engine_private import PrivateEngine
from faulty_registry import FaultyRegistry
from reproducing.archive import Archive

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine of its own, on a small disk, needs root"),
]
BUILD = ROOT / "build"
TAG = "tiny:local"
DISK_BYTES = 256 << 20


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    """An engine whose data are on a disk in memory."""
    disk = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    made = PrivateEngine(BUILD, "faults")
    made.data = disk / "data"
    try:
        with made.in_use():
            yield made
    except DebsError as error:
        pytest.skip(f"no engine of its own here: {error}")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@contextmanager
def nearly_full(engine: PrivateEngine) -> Iterator[int]:
    """Leaves the engine's disk a few MB; yields how many bytes are more than that."""
    disk, left = engine.data.parent, 8 << 20

    def resize(size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)

    resize(shutil.disk_usage(disk).used + left)
    try:
        yield 2 * left
    finally:
        resize(DISK_BYTES)


class Tiny:
    """A recipe of a few lines, built by ci/image's modules, and what its tag and report say."""

    def __init__(self, folder: Path, engine: PrivateEngine) -> None:
        self.source, self.report, self.engine = folder / "source", folder / "image.json", engine
        (self.source / "docker").mkdir(parents=True)
        self.environment = os.environ | {
            "DOCKER_HOST": engine.host,
            "PATH": f"{clients_path(BUILD)}:{os.environ['PATH']}",
            "DOCKER_CONFIG": str(folder / "client"),
            "BUILDX_BUILDER": "default",
        }

    def recipe(self, text: str, content: bytes) -> None:
        (self.source / "docker" / "Dockerfile").write_text(text)
        (self.source / "content").write_bytes(content)

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["docker", *arguments], env=self.environment, capture_output=True, text=True)

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        program = [sys.executable, Path(__file__).with_name("tiny_image.py"), self.source, self.report]
        return subprocess.Popen(
            [*program, f"--tag={TAG}", *options], env=self.environment | environment, stderr=subprocess.PIPE, text=True
        )

    def fails(self, *options: str, **environment: str) -> tuple[int, str]:
        return self.ended(self.start(*options, **environment))

    @staticmethod
    def ended(building: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and the one line that ci/image itself says."""
        said = building.communicate(timeout=60)[1].splitlines()
        (line,) = (line for line in said if line.startswith("kdtree: "))
        assert said[-1] == line
        assert not any("Traceback" in line for line in said)
        return building.returncode, line

    def named(self) -> str:
        return self.docker("image", "inspect", "--format={{.Id}}", TAG).stdout.strip()

    def images(self) -> set[str]:
        listed = self.docker("image", "ls", "--format={{.Repository}}:{{.Tag}}").stdout.split()
        return {name for name in listed if "<none>" not in name}

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Of the image with the tag, its report and all other tags."""
        before, told = self.named(), self.report.read_bytes()
        yield
        assert self.named() == before
        assert self.report.read_bytes() == told
        assert self.images() == {TAG}
        assert [*self.report.parent.glob("*.part")] == []


@pytest.fixture
def tiny(tmp_path: Path, engine: PrivateEngine) -> Tiny:
    """With an image that has the tag."""
    made = Tiny(tmp_path, engine)
    made.recipe("FROM scratch\nCOPY content /\n", b"old")
    building = made.start()
    assert (building.communicate()[1] and building.returncode) == 0
    return made


@pytest.fixture
def registry() -> Iterator[FaultyRegistry]:
    with FaultyRegistry() as made:
        yield made


def test_the_tag_moves_with_its_report(tiny: Tiny) -> None:
    assert json.loads(tiny.report.read_text()) == {"tag": TAG, "id": tiny.named(), "added_bytes": 0, "base_bytes": 0}
    before = tiny.named()
    tiny.recipe("FROM scratch\nCOPY content /\n", b"new")
    assert tiny.start().wait(60) == 0
    assert before != tiny.named() == json.loads(tiny.report.read_text())["id"]


def test_an_archive_is_what_the_engine_loads_and_has_the_commit_s_time(tiny: Tiny, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    ids = []
    for mtime in (1_800_000_000, 1_900_000_000):
        os.utime(tiny.source / "content", (mtime, mtime))
        assert tiny.start(f"--archive={archive}", "--tag", TAG).wait(60) == 0
        ids.append(tiny.named())
        found = Archive(archive)
        assert found.manifest_digest == ids[-1]
        (layer,) = found.layers
        with found.unpacked(layer) as members:
            assert {member.mtime for member in members} == {1_000_000_000}
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "is not in its registry"),
        ("wrong bytes", "a registry sent other bytes than the digest's"),
        ("cut", "the network ended"),
    ],
)
def test_a_registry_that_fails(tiny: Tiny, registry: FaultyRegistry, fault: str, words: str) -> None:
    registry.fault = fault
    tiny.recipe(f"FROM {registry.image}\nCOPY content /\n", b"new")
    with tiny.untouched():
        code, line = tiny.fails()
    assert code == 1
    assert words in line
    assert "Fix: " in line


@pytest.mark.parametrize("options", [[], ["--archive"]], ids=["load", "archive"])
def test_a_full_disk(tiny: Tiny, tmp_path: Path, options: list[str]) -> None:
    archive = tmp_path / "image.tar"
    with tiny.untouched(), nearly_full(tiny.engine) as too_many:
        tiny.recipe("FROM scratch\nCOPY content /\n", os.urandom(too_many))
        code, line = tiny.fails(*(f"{option}={archive}" for option in options))
    assert code == 1
    assert "the engine's disk is full" in line
    assert not archive.exists()


def test_what_the_image_must_not_be_gets_no_name(tiny: Tiny) -> None:
    """As a label that the base must have and has not."""
    tiny.recipe("FROM scratch\nCOPY content /\n", b"new")
    with tiny.untouched():
        code, line = tiny.fails(KDTREE_TINY_REFUSED="no such label. Fix: it")
    assert (code, line) == (1, "kdtree: no such label. Fix: it")


def test_the_same_image_again_keeps_its_name(tiny: Tiny, tmp_path: Path) -> None:
    """As where the limits were lowered, or the layers cannot be read just now."""
    archive = f"--archive={tmp_path / 'image.tar'}"
    assert tiny.start(archive).wait(60) == 0
    with tiny.untouched():
        assert tiny.fails(archive, KDTREE_TINY_REFUSED="too much. Fix: it") == (1, "kdtree: too much. Fix: it")


@contextmanager
def stalled(tiny: Tiny, registry: FaultyRegistry) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A build that waits for its base, and its buildx; whatever ends it leaves all as it was."""
    registry.fault = "stalled"
    tiny.recipe(f"FROM {registry.image}\nCOPY content /\n", b"new")
    with tiny.untouched():
        building = tiny.start()
        assert registry.reached.wait(30)
        children = Path(f"/proc/{building.pid}/task/{building.pid}/children").read_text()
        yield building, int(children)


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build(tiny: Tiny, registry: FaultyRegistry, number: signal.Signals) -> None:
    with stalled(tiny, registry) as (building, buildx):
        building.send_signal(number)
        code, line = tiny.ended(building)
    assert code == 128 + number
    assert f"interrupted by {number.name}: {TAG} is what it was" in line
    assert not runs(buildx)


def test_a_killed_build(tiny: Tiny, registry: FaultyRegistry) -> None:
    with stalled(tiny, registry) as (building, buildx):
        building.kill()
        building.wait()
        # The build is now nobody's, and may go on; it has no name to give.
        registry.fault = "none"
        registry.closing.set()
        deadline = time.monotonic() + 30
        while runs(buildx) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not runs(buildx)


def test_a_killed_engine(tiny: Tiny, registry: FaultyRegistry) -> None:
    with stalled(tiny, registry) as (building, _):
        os.kill(int((tiny.engine.run / "docker.pid").read_text()), signal.SIGKILL)
        code, line = tiny.ended(building)
        tiny.engine.start()
    assert code == 1
    assert "the engine ended" in line
