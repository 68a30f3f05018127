"""ci/engine_debs.py: packages of this machine's own Debian mirror."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine_debs import DebsError, codename

ROOT = Path(__file__).parents[2]


def test_two_commands_that_want_the_same_at_once_both_get_it(tmp_path: Path) -> None:
    try:
        release = codename()
    except DebsError as error:
        pytest.skip(str(error))
    program = f"from engine_debs import *; print(Debs(Path({str(tmp_path)!r})).unpack({{'hostname': {release!r}}}))"
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, cwd=ROOT / "ci", stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert said == [f"{tmp_path}/root\n"] * 2
    assert (tmp_path / "root" / "bin" / "hostname").exists()
