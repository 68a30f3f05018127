"""What the tests of the first build share: programs in place of a host's, a registry with the stand-ins in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from first_building import stand_in
from first_building.site import Pinned, Site


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`program(name, script)` puts a shell script of that name first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pinned, ...]]:
    """The pinned images' stand-ins in a registry that can be pruned."""
    try:
        with stand_in.registry(tmp_path_factory.mktemp("registry"), deletes=True) as pushed:
            yield pushed
    except stand_in.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A place without images, whose docker and buildx are known."""
    return Site((), tmp_path, data={"docker": {"DockerRootDir": "/"}, "buildx": {}})
