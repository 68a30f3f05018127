"""What every test may rely on, which tests cannot run here, and which share a process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Tests, and every process that they start, use the libraries that the source tree built.
os.environ.setdefault("KDTREE_LIBRARY_DIR", str(ROOT / "build" / "lib"))


@cache
def missing_gpu() -> str | None:
    """Why tests marked gpu cannot run here, None where they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "torch sees no NVIDIA GPU"


@cache
def missing_engine() -> str | None:
    """Why tests marked docker cannot run here, None where they can."""
    try:
        import docker

        docker.from_env(timeout=10).ping()
    except ImportError:
        return "the Docker SDK is not installed"
    except docker.errors.DockerException as error:
        return f"no Docker engine answers: {error}"
    return None


NEEDS = {"gpu": missing_gpu, "docker": missing_engine}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, missing in NEEDS.items():
            if item.get_closest_marker(marker) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where there are several processes (ci/test): who runs what. xdist's own groups do nothing with this pytest."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid.partition("::")[0])

    return Together(config, log)


@cache
def together(file: str) -> str:
    """Which files share a process: those that use the one engine, those of one session's servers; else each by itself."""
    path = ROOT / file
    if "pytest.mark.docker" in path.read_text():
        return "engine"
    return "servers" if path.parent.name == "server" else file
