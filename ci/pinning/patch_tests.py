"""The patch's tests against another SGLang than the test environment's, put before it on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .lockfile import ROOT, PinsError

PYTHON = ROOT / "build" / "venv" / "bin" / "python"
# What could differ there; the rest does not touch SGLang.
FILES = ("modes", "decline", "contract", "plugin", "server_arguments", "startup", "redaction")
# Of these, what could: the kernel's arithmetic is the same on any SGLang.
CHOSEN = "(not fp8 or descales) and not float32 and not page and not test_call_is_declined and not validate-logit"


def prepare() -> None:
    """The test environment and the host library; free where they are there. Raises PinsError."""
    for script in ("venv", "kernel"):
        if subprocess.run([ROOT / "ci" / script], stdout=subprocess.DEVNULL).returncode:
            raise PinsError(f"ci/{script} failed; why is above")


def run(sglang: Path) -> tuple[bool, str]:
    """Whether the tests pass with the package in the folder `sglang`, and what was said."""
    if (found := origin(sglang)) != str(sglang / "sglang" / "__init__.py"):
        return False, f"SGLang is imported from {found}, not from {sglang}"
    files = [ROOT / "tests" / "patch" / f"test_{name}.py" for name in FILES]
    done = _python(sglang, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *files)
    return done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def origin(sglang: Path) -> str:
    """Where the test environment's Python finds the package: a folder that lacks its __init__ would not be it."""
    done = _python(sglang, "-c", "import importlib.util as u; s = u.find_spec('sglang'); print(s and s.origin)")
    return done.stdout.strip()


def _python(sglang: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON if PYTHON.exists() else sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(sglang)}, capture_output=True, text=True
    )
