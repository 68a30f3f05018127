"""What every test may rely on, and which tests cannot run here."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

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
