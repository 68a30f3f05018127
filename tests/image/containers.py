"""Containers of the built image, as the tests of this folder use them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAG = "kdtree:stand-in"
MODELS = "/root/.cache/huggingface"
SERVER = [
    *("--model-path", f"{MODELS}/tiny", "--device", "cpu", "--attention-backend", "triton"),
    *("--sampling-backend", "pytorch", "--disable-cuda-graph", "--disable-overlap-schedule"),
    *("--mem-fraction-static", "0.8", "--max-total-tokens", "4096", "--max-running-requests", "4"),
    *("--skip-server-warmup", "--speculative-algorithm", "NGRAM", "--host", "0.0.0.0", "--sleep-on-idle"),
]


@dataclass
class Ran:
    """A container that has ended: its exit code, everything it said in one, and its stdout alone: the engine joins the
    two streams as they come, in the middle of a line, too."""

    code: int
    output: str
    stdout: str


def wait_until(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Polls until the condition holds; fails with what() when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.5)
