"""The same tests against SGLang 0.5.21, the sources of the pinned image's next day."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEIGHBOUR = HERE.parents[1] / "build" / "sglang-0.5.21"
# What could differ there; the rest does not touch SGLang.
FILES = ("modes", "decline", "contract", "plugin", "server_arguments", "startup", "redaction")
CHOSEN = "(not fp8 or descales) and not float32 and not page and not test_call_is_declined and not validate-logit"


def is_neighbour() -> bool:
    return any(Path(entry).resolve() == NEIGHBOUR for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep))


@pytest.mark.slow
@pytest.mark.skipif(is_neighbour(), reason="this is the run against the neighbour")
@pytest.mark.skipif(not NEIGHBOUR.is_dir(), reason="ci/venv has not unpacked SGLang 0.5.21")
def test_sglang_0_5_21() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sglang; print(sglang.__version__)"],
        env={**os.environ, "PYTHONPATH": str(NEIGHBOUR)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "0.5.21"
    files = [HERE / f"test_{name}.py" for name in FILES]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *files],
        env={**os.environ, "PYTHONPATH": str(NEIGHBOUR)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
