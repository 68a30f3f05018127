"""The CUDA kernels' sources in an emulator; cases and reference of tests/kernel."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "patch" / "src"), str(ROOT / "tests" / "kernel")]
