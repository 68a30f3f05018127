"""ci/gpu-proof without a GPU: what it refuses, what it lists, and that a server that fails is told in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import proof_samples
from kdtree_verify.errors import UsageError
from proof import __main__ as command
from proof.results import Identity, Results, sglang_of
from proof.starts import STARTS, Start
from proof.verdict import Run

ROOT = Path(__file__).parents[2]
IDENTITY = Identity("kernel", "patch", "questions", "0.0", "no card")


def proof(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "ci" / "gpu-proof", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": python},
        timeout=120,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["fast"],
        ["--minutes", "nan"],
        ["--side-by-side", "0"],
        ["--longest", "0"],
        ["--only", "fp4", "--list"],
        ["--only", "fp4"],
        ["--lis"],
        ["speed", "--only", "eagle4"],
        ["speed", "--longest", "1000"],
        ["report", "--results", "/dev/null"],
    ],
)
def test_bad_usage_is_one_line(arguments: list[str]) -> None:
    done = proof(*arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("kdtree: ")
    assert ". Fix: " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ([], "yes"),
        (["speed"], "yes"),
        (["--results", "report"], "yes"),
        (["--minutes", "3", "report"], "no"),
        (["--list"], "no"),
        (["speed", "--list"], "no"),
    ],
)
def test_what_needs_a_gpu(arguments: list[str], needed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--needs-gpu", *arguments]) == 0
    assert capsys.readouterr().out == f"{needed}\n"


def test_the_servers_are_listed_without_a_gpu(tmp_path: Path) -> None:
    done = proof("--list", "--only", "eagle4", "--results", str(tmp_path))
    assert done.returncode == 0
    assert {line.split("  ")[0] for line in done.stdout.splitlines()} == {"to do"}


def kept(folder: Path, start: Start, mode: str, run: Run) -> None:
    answers = [answer.as_json() for answer in run.answers]
    Results(folder, IDENTITY).save(start, mode, {"answers": answers, "ranks": run.ranks})


def test_a_report_judges_what_is_there(tmp_path: Path) -> None:
    start = STARTS[0]
    for mode in start.modes:
        kept(tmp_path, start, mode, proof_samples.run(mode))
    done = proof("report", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"ok     {start.name}" in done.stdout
    assert (
        f"| {start.name} | 0 of 2; noise 0.00 | 0 of 2; noise 0.00 |  |  | 2.000 / 2.000 | 9 | 0.002 |" in done.stdout
    )
    other = proof_samples.answer("alone-16/0", tokens=(5, 6, 7, 8, 9, 11))
    kept(tmp_path, start, "on", proof_samples.run("on", [other, proof_samples.answer("batch-3/1")]))
    done = proof("report", "--results", str(tmp_path))
    assert done.returncode == 1
    assert "on: token 5 of alone-16/0 is not off's, which led by 1.000" in done.stdout
    assert "1 of 2, led by 1.00" in done.stdout
    figures = json.loads((tmp_path / "verdicts.json").read_text())["figures"][start.name]
    assert figures["parting"]["on from off"]["greatest_lead"] == 1.0


def test_what_another_bundle_answered_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_GPU_BUNDLE", raising=False)
    assert sglang_of("0.5.23") == "0.5.23"
    monkeypatch.setenv("SGLANG_GPU_BUNDLE", "0123456789ab")
    assert sglang_of("0.5.23") == "0.5.23+bundle.0123456789ab"


@pytest.mark.parametrize("what", ["answers", "speed"])
def test_a_place_that_cannot_be_written_is_told_before_a_server_starts(what: str) -> None:
    with pytest.raises(UsageError, match="results cannot be kept: /dev/null"):
        command.main([what, "--results", "/dev/null/results"])


def test_a_python_without_torch_is_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = proof("--list", python=str(python))
    assert done.returncode == 69
    assert done.stderr == (
        f"kdtree: no torch and safetensors to make models with: {python}. Fix: set PYTHON to one that has SGLang\n"
    )


def test_nothing_is_no_report(tmp_path: Path) -> None:
    done = proof("report", "--results", str(tmp_path))
    assert done.returncode == 64
    assert f"{tmp_path} holds none" in done.stderr


def test_speeds_servers_are_its_own() -> None:
    done = proof("speed", "--list")
    assert done.returncode == 0
    assert done.stdout.split() == ["off-2", "on-2", "validate-2", "off-4", "on-4"]
