"""Runs calls in the emulator and holds what comes out against float64 and the host library.

    python3 tests/emulator/emulate.py chosen PART PARTS | weights | random FIRST COUNT | hostile COUNT | compare COUNT
                                      | racecheck | mutant NUMBER

A process of its own for the tests, since a failed check of the emulator ends it, with one line on stderr.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "patch" / "src"), *(str(ROOT / "tests" / folder) for folder in ("kernel", "gpu"))]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import oracle  # noqa: E402
import reference  # noqa: E402
from compared import Comparison, run_comparisons  # noqa: E402
from emulated import WRONG, Emulator, build_host  # noqa: E402
from emulated_cases import CHOSEN, LIMITS, MUTATED, RACECHECK  # noqa: E402
from fuzz import fuzz_call, memory_of, untouched  # noqa: E402
from guarded import guarded, guarded_bytes  # noqa: E402
from harness import Harness, fields  # noqa: E402
from kdtree_verify.config import Device  # noqa: E402
from kdtree_verify.native import abi  # noqa: E402
from kdtree_verify.native.call import Call  # noqa: E402
from kdtree_verify.native.library import load  # noqa: E402
from mutants import MUTANTS  # noqa: E402
from sanitize import hostile_call  # noqa: E402
from weight_calls import weight_calls  # noqa: E402

WORKSPACE_OF_CTA = 140_000  # bytes, somewhat more than one needs
MUTANT_SEEDS = 4
MUTANT_COMPARISONS = 9


class Emulation:
    """An emulator beside the host library: both get each call."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.host = Harness(load(build_host(), Device.CPU))
        self.emulated = Harness(self.host.library)
        self.comparison = Comparison(emulator, self.host.library)
        self.calls = 0

    def run(self, call: Call, ctas: int, seed: int) -> None:
        """Emulates the call on so many multiprocessors; its record must be the host library's."""
        self.emulated.workspace = guarded_bytes(ctas * WORKSPACE_OF_CTA, 16)
        status = self.emulator.run(self.emulated.verify_args(call), ctas, seed)
        assert status == abi.Status.OK, f"status {status}"
        assert self.host.verify(call, torch.empty_like(call.o_extend)) == abi.Status.OK
        self.calls += 1
        got, want = fields(self.emulated.record), fields(self.host.record)
        assert got == want, f"the record is {got}, the host library's {want}"
        assert fields(self.emulated.mirror) == got, "the mirror is not the record"

    def check(self, call: Call, ctas: int, seed: int) -> Call:
        """Emulates a copy of the call, and holds its rows against float64 as tests/gpu does; returns the copy."""
        call = guarded(call)
        self.run(call, ctas, seed)
        named = reference.named_rows(call)
        assert untouched(call, named), "memory between or beside the output's rows was written"
        if all(rows[named].isfinite().all() for rows in (call.k_extend, call.v_extend)):
            oracle.Errors().add(call, call.o_extend)
        else:
            self._check_nonfinite(call, named)
        return call

    def _check_nonfinite(self, call: Call, named: torch.Tensor) -> None:
        got, want = call.o_extend[named].double(), reference.attention(call)[named]
        finite = want.isfinite()
        assert not finite.all(), "the call's NaN is in no row"
        torch.testing.assert_close(got[~finite], want[~finite], equal_nan=True)
        error = torch.where(finite, got - want, 0.0).norm(dim=-1)
        assert (error <= 0.02 * torch.where(finite, want, 0.0).norm(dim=-1)).all(), "a row is more than 2% off"

    def check_twice(self, call: Call, ctas: int, seed: int) -> None:
        """Under two orders of the threads: the same bits."""
        first, second = self.check(call, ctas, seed), guarded(call)
        self.run(second, ctas, seed + 1_000_003)
        bits = (memory_of(run.o_extend).view(torch.int16) for run in (first, second))
        assert torch.equal(*bits), "not the same bits under another order of the threads"

    def summary(self) -> str:
        record = self.emulated.record
        return f"{self.calls} calls, {record.kernel_rows} rows, {record.out_of_range} reads refused"


def run_chosen(emulation: Emulation, part: int, parts: int) -> None:
    for number in range(part, len(CHOSEN), parts):
        chosen = CHOSEN[number]
        print(f"{chosen.ctas} CTAs, {chosen.pool}, {chosen.bad or 'good'}: {chosen.case}", flush=True)
        emulation.check(chosen.call(number), chosen.ctas, number)


def run_random(emulation: Emulation, first: int, count: int) -> None:
    for seed in range(first, first + count):
        call, shape = fuzz_call(seed, LIMITS, torch.device("cpu"))
        ctas = Random(seed).choice((1, 3, 6, 9, 12))
        print(f"random {seed} 1: {ctas} CTAs, {shape}", flush=True)
        emulation.check_twice(call, ctas, seed)


def run_hostile(emulation: Emulation, count: int) -> None:
    random = np.random.default_rng(5)
    for seed in range(count):
        emulation.run(guarded(hostile_call(random)), int(random.integers(1, 4)), seed)


def run_weights(emulation: Emulation) -> None:
    for name, call in weight_calls().items():
        print(name, flush=True)
        emulation.check(call, 1, 0)


def run_mutated(emulation: Emulation, pool: str) -> None:
    """Under several orders of the threads."""
    for seed in range(MUTANT_SEEDS):
        for chosen in MUTATED:
            emulation.check(replace(chosen, pool=pool).call(seed), chosen.ctas, seed)


def run_mutant(emulation: Emulation, number: int) -> None:
    """The calls that run into it; all of them where none is chosen."""
    calls = {MUTANTS[number - 1].calls} if number else {"any", "fp8", "weights", "compare"}
    if "any" in calls:
        run_mutated(emulation, "bf16")
    if "fp8" in calls:
        run_mutated(emulation, "e4m3")
    if "weights" in calls:
        run_weights(emulation)
    if "compare" in calls:
        run_comparisons(emulation.comparison, MUTANT_COMPARISONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("chosen", "weights", "random", "hostile", "compare", "racecheck", "mutant"))
    parser.add_argument("numbers", type=int, nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # stderr is for the one line
    build = {"racecheck": "racecheck", "mutant": "mutants"}.get(options.what, "kernel")
    mutant = options.numbers[0] if options.what == "mutant" else 0
    emulation = Emulation(Emulator(build, mutant))
    if options.what == "chosen":
        run_chosen(emulation, *options.numbers)
    elif options.what == "weights":
        run_weights(emulation)
    elif options.what == "random":
        run_random(emulation, *options.numbers)
    elif options.what == "hostile":
        run_hostile(emulation, *options.numbers)
    elif options.what == "compare":
        run_comparisons(emulation.comparison, *options.numbers)
        print(f"{emulation.comparison.calls} comparisons, {emulation.comparison.kept} kept")
    elif options.what == "racecheck":
        emulation.check(RACECHECK.call(0), RACECHECK.ctas, 0)
    else:
        try:
            run_mutant(emulation, mutant)
        except AssertionError as wrong:
            print(f"emulator: wrong: {wrong}", file=sys.stderr)
            sys.exit(WRONG)
    print(emulation.summary())


if __name__ == "__main__":
    main()
