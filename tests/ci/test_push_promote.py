"""ci/push and ci/promote against a registry on loopback, with a small image of the engine at hand.

What is proven of a failure is what the registry holds after it: no tag, or the tag that was there.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry_server
from oci import names
from oci.client import Client
from registry_server import Registry

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LABELS = {"org.opencontainers.image.version": "9.8.7", "org.opencontainers.image.revision": COMMIT}

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(registry_server.binary() is None, reason="no docker-registry (ci/registry fetches it)"),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture
def registry(stored: Path) -> Iterator[Registry]:
    with registry_server.running(stored) as found:
        yield found


def imported(folder: Path, content: bytes, labels: dict[str, str]) -> str:
    """An image of one file; its name goes away with the fixture."""
    path = folder / "content.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("file")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    name = f"kdtree-push-test:{folder.name}-{len(content)}"
    changes = [f"--change=LABEL {key}={value}" for key, value in labels.items()]
    subprocess.run(["docker", "import", *changes, path, name], check=True, capture_output=True)
    return name


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Small images: one of a clean commit, another one, one of a checkout that was changed."""
    folder = tmp_path_factory.mktemp("images")
    made = {
        "clean": imported(folder, b"a", LABELS),
        # Larger than what goes through a socket's buffers: a push of it is under way for a while.
        "other": imported(folder, os.urandom(24 << 20), LABELS),
        "dirty": imported(folder, b"ccc", LABELS | {"org.opencontainers.image.revision": f"{COMMIT}-dirty"}),
    }
    yield made
    subprocess.run(["docker", "image", "rm", "--force", *made.values()], check=False, capture_output=True)


def ran(command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "ci" / command, *arguments], capture_output=True, text=True, env=os.environ | environment, timeout=120
    )


def pushed(registry: Registry, image: str, name: str) -> str:
    done = ran("push", image, f"{registry.address}/{name}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tags(registry: Registry, name: str) -> list[str]:
    folder = registry.log.parent / "images/docker/registry/v2/repositories" / name / "_manifests/tags"
    return sorted(path.name for path in folder.glob("*"))


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """It ended with that code and one line, which names these and what to do; nothing went to stdout."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("push:")]
    assert (done.returncode, done.stdout, len(lines)) == (code, "", 1), done.stderr
    assert lines[0].startswith("kdtree: ")
    assert " Fix: " in lines[0]
    assert all(word in lines[0] for word in words), lines[0]


def test_a_push_is_by_digest_and_what_is_pulled_is_the_image(registry: Registry, images: dict[str, str]) -> None:
    by_digest = pushed(registry, images["clean"], "tests/whole")
    assert re.fullmatch(rf"{registry.address}/tests/whole@sha256:[0-9a-f]{{64}}", by_digest)
    assert tags(registry, "tests/whole") == []
    subprocess.run(["docker", "pull", "--quiet", by_digest], check=True, capture_output=True)
    inspected = subprocess.run(
        ["docker", "image", "inspect", "--format={{json .Config.Labels}}", by_digest], capture_output=True, check=True
    )
    assert json.loads(inspected.stdout) == LABELS
    subprocess.run(["docker", "image", "rm", by_digest], check=True, capture_output=True)


def test_what_the_registry_has_is_not_sent_again(registry: Registry, images: dict[str, str]) -> None:
    first = pushed(registry, images["clean"], "tests/again")
    uploads = registry.log.read_text().count("/v2/tests/again/blobs/uploads/")
    assert uploads > 0
    assert pushed(registry, images["clean"], "tests/again") == first
    assert registry.log.read_text().count("/v2/tests/again/blobs/uploads/") == uploads


def test_a_promoted_image_has_its_version_and_commit_for_a_tag(registry: Registry, images: dict[str, str]) -> None:
    image = pushed(registry, images["clean"], "tests/promoted")
    done = ran("promote", image)
    name, _, digest = image.partition("@")
    assert done.stdout == f"{name}:9.8.7-0123456789ab@{digest}\n", done.stderr
    assert tags(registry, "tests/promoted") == ["9.8.7-0123456789ab"]
    assert ran("promote", image).stdout == done.stdout  # again: it is there, and is this one


def test_a_tag_never_moves(registry: Registry, images: dict[str, str]) -> None:
    first, second = (pushed(registry, images[key], "tests/taken") for key in ("clean", "other"))
    assert ran("promote", first, "1.0").returncode == 0
    refused(ran("promote", second, "1.0"), "the tag is taken", first.partition("@")[2], second.partition("@")[2])
    assert Client(names.repository(f"{registry.address}/tests/taken")).digest("1.0") == first.partition("@")[2]


def test_an_image_of_a_changed_checkout_gets_no_tag(registry: Registry, images: dict[str, str]) -> None:
    refused(ran("promote", pushed(registry, images["dirty"], "tests/dirty")), f"'{COMMIT}-dirty'")
    assert tags(registry, "tests/dirty") == []


def test_a_wrong_digest_is_said(registry: Registry, images: dict[str, str]) -> None:
    image = pushed(registry, images["clean"], "tests/wrong")
    wrong = image.replace(image[-8:], "00000000")
    refused(ran("promote", wrong), "no such image", wrong)


@pytest.mark.parametrize(
    ("command", "arguments", "word"),
    [
        ("promote", ("127.0.0.1:5/a/b:tag",), "no image by digest"),
        ("promote", ("127.0.0.1:5/a@sha256:12",), "no image by digest"),
        ("promote", (f"127.0.0.1:5/a@sha256:{'a' * 64}", "latest"), "'latest'"),
        ("promote", (f"127.0.0.1:5/a@sha256:{'a' * 64}", "a b"), "'a b'"),
        ("push", ("x", "ghcr.io/Upper/case"), "ghcr.io/Upper/case"),
    ],
)
def test_a_bad_name_is_said_in_one_line(command: str, arguments: tuple[str, ...], word: str) -> None:
    refused(ran(command, *arguments), word, code=64)


def test_an_image_that_the_engine_has_not_is_said_in_one_line() -> None:
    refused(ran("push", "kdtree-push-test:none-such", "127.0.0.1:5/a"), "kdtree-push-test:none-such")


def test_a_registry_that_is_not_there_is_said(images: dict[str, str]) -> None:
    refused(ran("push", images["clean"], "127.0.0.1:9/a"), "127.0.0.1:9", code=69)
    refused(ran("promote", f"127.0.0.1:9/a@sha256:{'a' * 64}", "1"), "127.0.0.1:9", code=69)


def test_a_read_only_registry_is_said(stored: Path, tmp_path: Path, images: dict[str, str]) -> None:
    with registry_server.running(tmp_path, read_only=True) as registry:
        refused(ran("push", images["clean"], f"{registry.address}/a"), "HTTP 405")


class Cut:
    """A way to the registry that breaks after some bytes of what is sent."""

    def __init__(self, target: str, after: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target, self._left = target, after
        self.sending = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._listener.accept()
            host, _, port = self._target.partition(":")
            far = socket.create_connection((host, int(port)))
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
            threading.Thread(target=self._back, args=(far, near), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        while data := near.recv(65536):
            self._left -= len(data)
            if self._left < 0:
                self.sending.set()
                near.close()
                far.close()
                return
            far.sendall(data)

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        try:
            while data := far.recv(65536):
                near.sendall(data)
        except OSError:
            near.close()


def test_a_network_that_breaks_half_way_leaves_no_image_and_again_it_works(
    registry: Registry, images: dict[str, str]
) -> None:
    repository = "tests/broken"
    cut = Cut(registry.address, after=8 << 20)
    refused(ran("push", images["other"], f"{cut.address}/{repository}"), "does not answer", code=69)
    assert cut.sending.is_set()
    assert not re.search(rf"PUT /v2/{repository}/manifests", registry.log.read_text())
    image = pushed(registry, images["other"], repository)
    assert Client(names.repository(f"{registry.address}/{repository}")).digest(image.partition("@")[2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_push_leaves_no_image(registry: Registry, images: dict[str, str], number: int) -> None:
    repository = f"tests/interrupted{number}"
    with subprocess.Popen(
        [ROOT / "ci" / "push", images["other"], f"{registry.address}/{repository}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("push: ")
        process.send_signal(number)
        process.wait(timeout=60)
    assert process.returncode in (130, -number)
    assert not re.search(rf"PUT /v2/{repository}/manifests", registry.log.read_text())
    assert tags(registry, repository) == []
