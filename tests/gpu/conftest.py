"""The CUDA library that the source tree built, on the first GPU; cases and reference of tests/kernel, captures of
tests/patch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Calls are drawn on the CPU: with a thread for each of many cores they wait for each other, the more so beside servers.
os.environ.setdefault("OMP_NUM_THREADS", "4")
sys.path[:0] = [str(ROOT / "patch" / "src"), *(str(ROOT / "tests" / name) for name in ("kernel", "patch"))]


@pytest.fixture(scope="session")
def library():
    from kdtree_verify.config import Device
    from kdtree_verify.native import library

    return library.load(Path(os.environ["KDTREE_LIBRARY_DIR"]), Device.CUDA)


@pytest.fixture
def harness(library):
    import torch

    from harness import Harness

    return Harness(library, torch.device("cuda", 0))
