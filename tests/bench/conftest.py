"""The benchmark on the CPU: the host library is timed by a timer that makes its times up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from bench.contenders import Kdtree
from bench.inputs import Inputs
from bench.runner import Bench
from bench_samples import CPU, MadeUpTimer
from kdtree_verify.config import Device
from kdtree_verify.native.library import load


@pytest.fixture(scope="session")
def ours() -> Kdtree:
    return Kdtree(load(Path(os.environ["KDTREE_LIBRARY_DIR"]), Device.CPU), CPU)


@pytest.fixture
def timer() -> MadeUpTimer:
    return MadeUpTimer()


@pytest.fixture
def bench(timer: MadeUpTimer) -> Bench:
    return Bench(inputs=Inputs(CPU, 4096), timer=timer, rotation_bytes=1 << 18, memory=1 << 40)
