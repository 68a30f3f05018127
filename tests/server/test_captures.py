"""A real server in validate whose kernel goes wrong keeps calls of it, and `kdtree replay` says that ours was."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kdtree_verify.replay import file
from outcome import Outcome

pytestmark = [pytest.mark.server, pytest.mark.slow]


def kept(outcome: Outcome) -> list[Path]:
    """The files that the server's log names."""
    return [Path(path) for path in re.findall(r"Who was right: kdtree replay (\S+)", outcome.log)]


def test_a_broken_kernels_calls_are_kept(validate: Outcome, model: Path) -> None:
    paths = kept(validate)
    assert 1 <= len(paths) <= 4
    assert len({path.parent for path in paths}) == 1
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        capture, origin = file.read(path)
        assert (origin.mode, origin.rank, origin.model_path) == ("validate", "dp0-pp0-tp0", str(model))
        assert origin.versions["sglang"]
        assert capture.layer in (0, 1)
        assert capture.visible is not None
        assert capture.rel_l2 > capture.bound == 0.02


def test_replay_says_who_was_right(validate: Outcome) -> None:
    """By the library that the server had, without its fault; it runs as an operator runs it."""
    for path in kept(validate):
        command = [sys.executable, "-W", "ignore", "-m", "kdtree_verify.cli", "replay", path, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        found = json.loads(done.stdout)
        assert (found["verdict"], done.returncode) == ("ours_wrong", 1), done.stderr
        assert found["recorded"]["ours"]["rel_l2"] > 0.02
        assert found["verdict_line"].endswith(
            "another library than the recorded one repeated it, and is right; stock was right"
        )
        assert found["repeated"]["ours"][0]["distance"]["rel_l2"] < 0.005


def test_a_server_without_a_fault_keeps_nothing(on: Outcome, eagle: Outcome) -> None:
    assert kept(on) == kept(eagle) == []
