"""ci/README.md has every entry of the folder in its tables, once; and its programs refuse what they do not know."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ci" / "README.md").read_text(encoding="utf-8")
HAVE_HELP = [
    *("additions", "engine", "first-build", "gpu-job", "hosted-runner", "image", "mirror", "pins", "promote", "push"),
    *("provenance", "reproduce", "runner-setup", "sbom", "scan", "sign", "standin.py", "verify", "wheelhouse"),
]
OTHERS = ["bench-peers", "demo/run", "gpu-bundle", "kernel", "lint-workflows", "pull-request", "system-packages"]


def test_each_entry_of_the_folder_is_explained_once() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "ci"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(name).relative_to("ci").parts for name in listed.stdout.split("\0") if name]
    entries = {parts[0] + ("/" if len(parts) > 1 else "") for parts in files} - {"README.md"}
    cells = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    assert Counter(name for cell in cells for name in re.findall(r"`([^`]+)`", cell)) == Counter(entries)


@pytest.mark.parametrize("program", [*HAVE_HELP, *OTHERS])
def test_an_option_that_a_program_does_not_know_is_bad_usage(program: str) -> None:
    """Before it downloads, builds or installs anything, for none of that takes as little time as this."""
    done = subprocess.run([ROOT / "ci" / program, "--no-such"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", HAVE_HELP)
def test_help_is_no_error(program: str) -> None:
    done = subprocess.run([ROOT / "ci" / program, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert program in done.stdout
