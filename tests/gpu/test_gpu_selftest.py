"""The self-test on a card: a right library passes, a wrong one does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kdtree_verify import selftest
from kdtree_verify.native.abi import VerifyArgs
from kdtree_verify.native.call import DTYPES
from kdtree_verify.native.library import Library
from kdtree_verify.selftest import golden
from kdtree_verify.selftest.shapes import SHAPES

pytestmark = pytest.mark.gpu

SOURCES = Path(__file__).resolve().parents[2] / "patch" / "src"
GPU = torch.device("cuda:0")


@pytest.mark.parametrize(("heads", "draft_tokens"), [(1, 1), (8, 16), (12, 5), (16, 64), (20, 33), (128, 256)])
def test_the_library_passes(library, heads, draft_tokens):
    report = selftest.run(library, GPU, heads, draft_tokens)
    print(report.summary(), report.seconds)
    report.raise_if_failed()
    assert {case.mode for case in report.cases} == {"eager", "graph"}
    taken = {shape.name for shape in SHAPES if DTYPES[shape.first.pool_dtype] in library.description.pool_dtypes}
    assert taken < {case.shape for case in report.cases}
    assert {case.variant for case in report.cases} - {0} == set(range(1, len(library.description.variants) + 1))


class _WrongScale(Library):
    def verify(self, args: VerifyArgs) -> int:
        args.sm_scale *= 1.02
        return super().verify(args)


def test_a_library_that_is_wrong_fails_eager_and_in_the_graph(library):
    wrong = _WrongScale(library.description, library.functions)
    report = selftest.run(wrong, GPU, 8, 16)
    right = selftest.run(library, GPU, 8, 16)
    ways = {(case.shape, case.mode) for case in right.cases} - {
        (case, mode) for case in ("record", "compare") for mode in ("eager", "graph")
    }
    assert {(case.shape, case.mode) for case in report.failures} == ways


def test_inputs_on_the_gpu_are_those_on_the_cpu():
    for request in golden.REQUESTS.values():
        gpu = golden.pool_rows(request, GPU).cpu()
        assert torch.equal(gpu.view(torch.uint8), golden.pool_rows(request, torch.device("cpu")).view(torch.uint8))


def test_the_command_proves_every_gpu():
    command = ["selftest", "--device", "all", "--heads", "8", "--draft-tokens", "16", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "kdtree_verify.cli", *command],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    reports = json.loads(done.stdout)["reports"]
    print([sum(report["seconds"].values()) for report in reports])  # docs/selftest.md says what is usual
    assert [report["passed"] for report in reports] == [True] * torch.cuda.device_count()
