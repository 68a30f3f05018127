"""Each of make's verbs calls one script of ci/, and each script can be called."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

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
