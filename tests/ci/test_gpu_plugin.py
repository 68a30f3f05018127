"""SGLang finds the plugin of a checkout that is on PYTHONPATH and not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUND = """
from importlib.metadata import entry_points
print([entry.load().__module__ for entry in entry_points(group="sglang.srt.plugins")])
"""
VERSIONS = """
from importlib.metadata import version
from kdtree_verify import __version__
print(version("kdtree-verify") == __version__)
"""


def run(checkout: Path, *command: str) -> str:
    """Runs Python with the checkout's sources and build/gpu-plugin, and nothing that is installed."""
    path = [checkout / "patch" / "src", checkout / "build" / "gpu-plugin"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-S", *command], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_it_is_found_once(tmp_path: Path) -> None:
    for part in ("ci/gpu-plugin", "patch/pyproject.toml"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    shutil.copytree(
        ROOT / "patch" / "src" / "kdtree_verify",
        tmp_path / "patch" / "src" / "kdtree_verify",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    assert run(tmp_path, "-c", FOUND) == "[]"
    for _ in range(2):  # the second call finds its own work, and leaves one again
        run(tmp_path, str(tmp_path / "ci" / "gpu-plugin"))
        assert run(tmp_path, "-c", FOUND) == "['kdtree_verify.plugin']"
    assert run(tmp_path, "-c", VERSIONS) == "True"  # which the kernel library's must be
