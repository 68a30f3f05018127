"""ci/bench without a GPU: what it refuses, and what needs none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import __main__ as command
from bench.cells import SMALL, TABLE
from bench.results import Results
from bench_samples import a_row, a_run

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "ci" / "bench", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": python},
        timeout=120,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["--pool", "fp4"],
            ["grids"],
            ["plot"],
            ["table", "x.json"],
            ["--minutes", "nan"],
            ["grid", "--pool", "e4m3"],
            ["modes", "--pool", "e4m3"],
        ),
        *(["--dry"], ["--hel"]),
        ["--results", "/proc/x/y.json"],
        ["--results", "/"],
        ["plot", str(ROOT / "docs" / "benchmark" / "h200.json"), "--into", "/proc/x"],
    ],
)
def test_bad_usage_is_one_line(arguments: list[str]) -> None:
    done = bench(*arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("kdtree: ")
    assert ". Fix: " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [[], ["--commit", "plot"]])
def test_without_a_gpu_it_says_so(arguments: list[str]) -> None:
    done = bench(*arguments)
    assert done.returncode == 69
    assert done.stderr.startswith("kdtree: no GPU")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ([], "yes"),
        (["--results", "plot", "--commit", "plot"], "yes"),
        (["plot", "x.json"], "no"),
        (["--into", "x", "plot", "x.json"], "no"),
        (["grid", "--dry-run"], "no"),
        (["modes"], "yes"),
        (["modes", "--dry-run"], "no"),
    ],
)
def test_what_needs_a_gpu(
    arguments: list[str],
    needed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["--needs-gpu", *arguments]) == 0
    assert capsys.readouterr().out == f"{needed}\n"
    assert not [*tmp_path.iterdir()]


def test_a_dry_run_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'patch' / 'src'}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "grid", "--dry-run"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0
    assert done.stdout.endswith("864 cells\n")
    assert len(done.stdout.splitlines()) == 865


def test_the_model_is_fitted_to_the_recorded_run_of_another_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "h200.json")
    monkeypatch.setattr(command, "RECORDED", results.path)
    assert command.recorded_fit("NVIDIA RTX PRO 6000") is None
    rows = [a_row(cell, kdtree=100.0) for cell in TABLE]
    results.begin("table", a_run(rows, small=[a_row(SMALL[0], kdtree=9.0)]))
    results.save()
    found = command.recorded_fit("NVIDIA RTX PRO 6000")
    assert found is not None
    assert found.source == "NVIDIA H200, 2026-11-30"
    assert command.recorded_fit("NVIDIA H200") is None


def test_a_results_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    done = bench("plot", str(tmp_path / "x.json"))
    assert done.returncode == 64
    assert "x.json" in done.stderr
