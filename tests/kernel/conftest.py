"""The host library, compiled from the sources under test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "patch" / "src"), str(ROOT / "docker" / "standin" / "shim" / "src")]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors here are small: on a busy machine, torch's threads wait for each other most of the time."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def library_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a freshly compiled libkdtree_verify_host.so."""
    directory = tmp_path_factory.mktemp("lib")
    subprocess.run(["sh", ROOT / "kernel" / "build.sh", "host", directory], check=True)
    return directory


@pytest.fixture(scope="session")
def library(library_dir: Path):
    from kdtree_verify.config import Device
    from kdtree_verify.native import library

    return library.load(library_dir, Device.CPU)
