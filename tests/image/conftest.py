"""What the tests of the image share: docker/'s modules, the built image, a model, containers that go away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from containers import ROOT, TAG, Ran

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

sys.path.insert(0, str(ROOT / "docker"))


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    import docker

    return docker.from_env(timeout=120)


@pytest.fixture(scope="session")
def image() -> dict[str, Any]:
    """build/image.json of the image built on stand-in bases; the build is the product's own script."""
    done = subprocess.run(
        [ROOT / "ci" / "image", "--stand-in", f"--tag={TAG}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads((ROOT / "build" / "image.json").read_text())


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the demo's model as `tiny`."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, ROOT / "ci" / "demo" / "model.py", folder / "tiny"], check=True)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def start(client: docker.DockerClient, image: dict[str, Any]) -> Iterator[Callable[..., Container]]:
    """Starts containers of the image in the background; those of a test are removed at its end."""
    started = []

    def run(*command: str, **options: Any) -> Container:
        container = client.containers.run(options.pop("image", image["id"]), list(command), detach=True, **options)
        started.append(container)
        return container

    yield run
    for container in started:
        container.remove(force=True, v=True)


@pytest.fixture
def run(start: Callable[..., Container]) -> Callable[..., Ran]:
    """Runs a container of the image to its end."""

    def to_its_end(*command: str, **options: Any) -> Ran:
        container = start(*command, **options)
        code = container.wait(timeout=120)["StatusCode"]
        return Ran(code, container.logs().decode(), container.logs(stderr=False).decode())

    return to_its_end
