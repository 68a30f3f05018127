"""Each of make's verbs calls one script of ci/, and each script can be called."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from imaging import cli, interruption

ROOT = Path(__file__).parents[2]
RULES = dict(re.findall(r"^([a-z-]+):  ##.*\n\t@(\S+)", (ROOT / "Makefile").read_text(), re.M))
VERBS = {"demo", "test", "matrix", "image", "reproduce", "kernel", "gpu-test", "bench", "lint", "clean"}


def test_the_verbs_are_the_documented_ones() -> None:
    assert RULES.keys() == VERBS | {"help"}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_calls_a_program_in_ci(verb: str) -> None:
    program = ROOT / RULES[verb]
    assert ROOT / "ci" in program.parents
    assert os.access(program, os.X_OK)


def test_make_alone_lists_the_verbs() -> None:
    listed = subprocess.run(["make", "-s", "-C", ROOT], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"make (\S+)", listed)) == VERBS | {"help"}


def test_the_matrix_names_an_sglang_that_it_has_not() -> None:
    done = subprocess.run([ROOT / "ci" / "matrix", "0.5.16"], capture_output=True, text=True)
    assert done.returncode == 69
    assert "kdtree: SGLang 0.5.16 is not unpacked: " in done.stderr


def test_the_environment_is_made_by_one_command_at_a_time() -> None:
    with (ROOT / "build" / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen([ROOT / "ci" / "venv"], stderr=subprocess.PIPE, text=True)
        assert waiting.stderr
        assert "waiting" in waiting.stderr.readline()
        assert waiting.poll() is None
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert waiting.wait(60) == 0


@pytest.mark.parametrize(("lacks", "ci", "code"), [("registry", "true", 69), ("cosign", "true", 69), ("cosign", "", 7)])
def test_in_ci_nothing_that_is_published_goes_untested(lacks: str, ci: str, code: int, tmp_path: Path) -> None:
    """Programs of this name that do nothing, but the one that cannot be had, and an engine that ends the run."""
    (tmp_path / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "test", tmp_path / "ci")
    for name in ("room", "system-packages", "prometheus", "registry", "cosign", "venv", "kernel", "engine"):
        ends = 69 if name == lacks else 7 if name == "engine" else 0
        (tmp_path / "ci" / name).write_text(f'#!/bin/sh\n[ "$2" = true ] || exit {ends}\n')
        (tmp_path / "ci" / name).chmod(0o755)
    environment = os.environ | {"CI": ci}
    done = subprocess.run([tmp_path / "ci" / "test"], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert lacks in done.stderr


def test_a_machine_without_docker_cannot_build_the_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ci/image"])
    monkeypatch.setattr(interruption, "listen", lambda: None)
    monkeypatch.setattr("shutil.which", lambda *_: None)
    assert cli.main() == 69
    assert capsys.readouterr().err.startswith("kdtree: no docker with buildx on PATH. Fix: ")


def test_a_second_build_of_an_image_waits_for_the_first() -> None:
    lock = ROOT / "build" / "image.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with subprocess.Popen([ROOT / "ci" / "image", "--stand-in"], stderr=subprocess.PIPE, text=True) as second:
            assert second.stderr is not None
            assert second.stderr.readline() == "image: another ci/image of this checkout builds; waiting\n"
            second.terminate()
            assert second.wait(20) == 128 + signal.SIGTERM
            assert "Fix: run it again" in second.stderr.read()
