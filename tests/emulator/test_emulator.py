"""The CUDA kernels' sources, compiled by g++ and run thread by thread (emulator.h): no race, no deadlock, and right
results.

KDTREE_EMULATE chooses how many random calls: "2000".
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import emulated
from mutants import MUTANTS

pytestmark = pytest.mark.skipif(emulated.UNSUPPORTED is not None, reason=emulated.UNSUPPORTED or "")

SCRIPT = Path(__file__).with_name("emulate.py")
RANDOM_CALLS = int(os.environ.get("KDTREE_EMULATE", "20"))
PROCESSORS = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module", autouse=True)
def builds() -> None:
    """All of them, before the tests' processes want the same ones at the same time."""
    emulated.build_runtime()
    with ThreadPoolExecutor(PROCESSORS) as pool:
        jobs = [pool.submit(emulated.build, name) for name in emulated.KINDS]
        jobs.append(pool.submit(emulated.build_host))
        for job in jobs:
            job.result()


def emulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A process, since a failed check ends it."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def assert_all_pass(runs: Iterable[tuple[object, ...]]) -> None:
    with ThreadPoolExecutor(PROCESSORS) as pool:
        for done in pool.map(lambda run: emulate(*run), runs):
            assert done.returncode == 0, f"{' '.join(done.args[1:])}\n{done.stdout}{done.stderr}"


def test_calls_by_how_they_are_split() -> None:
    assert_all_pass([("chosen", part, 2) for part in range(2)])


def test_weights_at_the_ends_of_their_numbers() -> None:
    assert_all_pass([("weights",)])


def test_random_calls_under_two_orders() -> None:
    """Each of fuzz.py's calls twice, its threads in different orders: close to float64, and the same bits."""
    parts = min(PROCESSORS, RANDOM_CALLS)
    share = -(-RANDOM_CALLS // parts)
    firsts = range(0, RANDOM_CALLS, share)
    assert_all_pass([("random", first, min(share, RANDOM_CALLS - first)) for first in firsts])


def test_numbers_out_of_range() -> None:
    """Nothing outside the call's arrays is touched, and as much is refused as by the host library."""
    assert_all_pass([("hostile", 20)])


def test_comparisons_boxes_and_gates() -> None:
    """What they leave is what the host library leaves, byte for byte of what is kept."""
    assert_all_pass([("compare", 60)])


def test_the_racecheck_build() -> None:
    assert_all_pass([("racecheck",)])


def test_mutants_are_caught() -> None:
    """Every one of them, and the same build passes where none is chosen."""
    numbers = range(len(MUTANTS) + 1)
    with ThreadPoolExecutor(PROCESSORS) as pool:
        none, *mutated = pool.map(lambda number: emulate("mutant", number), numbers)
    assert none.returncode == 0, none.stderr
    for mutant, done in zip(MUTANTS, mutated, strict=True):
        codes = (emulated.WRONG,) if mutant.fails == "wrong" else emulated.FAILED
        assert done.returncode in codes, f"{mutant.name}: not caught\n{done.stdout}{done.stderr}"
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"emulator: {mutant.fails}"), f"{mutant.name}: {line}"


def test_changed_sources_are_told() -> None:
    """A place that is replaced must be there, once: no test of what nvcc does not compile."""
    for text in ("nothing of it", "old old"):
        with pytest.raises(emulated.SourcesChangedError, match=r"kernel/cuda/x\.cuh has \d times, wanted once: 'old'"):
            emulated.replaced(text, "old", "new", "x.cuh")
