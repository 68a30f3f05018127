"""ci/gpu-sglang: the bundle's SGLang where Python has none, and nothing else where it has one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASKED = "import os, sglang; print(sglang.WHOSE, os.environ.get('KDTREE_PROOF_ARGUMENTS'))"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One with a bundle whose SGLang is a line, and whose installer and environment are the real ones."""
    bundle = tmp_path / "build" / "gpu-bundle"
    bundle.mkdir(parents=True)
    (tmp_path / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "gpu-sglang", tmp_path / "ci")
    shutil.copy(ROOT / "ci" / "gpu_bundle" / "install.py", bundle / "install")
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("WHOSE = 'the bundle'")
    with tarfile.open(bundle / "site.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "sglang", "sglang")
        archive.add(ROOT / "ci" / "gpu_bundle" / "environment", "environment")
    shutil.rmtree(tmp_path / "sglang")
    digest = hashlib.sha256((bundle / "site.tar.xz").read_bytes()).hexdigest()
    (bundle / "SHA256SUMS").write_text(f"{digest}  site.tar.xz\n")
    return tmp_path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without SGLang."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def run(checkout: Path, python: Path | str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KDTREE_PROOF_ARGUMENTS")}
    return subprocess.run(
        [checkout / "ci" / "gpu-sglang", *command],
        env={**clean, "PYTHON": str(python), **environment},
        cwd="/",
        capture_output=True,
        text=True,
    )


def test_the_bundle_is_used_where_python_has_no_sglang(checkout: Path, bare: Path) -> None:
    done = run(checkout, bare, str(bare), "-c", ASKED)
    assert done.stdout.startswith("the bundle --attention-backend triton "), done.stderr
    again = run(checkout, bare, "ci/gpu-sglang", str(bare), "-c", ASKED, KDTREE_PROOF_ARGUMENTS="--own")
    assert again.returncode == 127, "a command is looked for where the caller stands"
    own = run(
        checkout, bare, str(checkout / "ci" / "gpu-sglang"), str(bare), "-c", ASKED, KDTREE_PROOF_ARGUMENTS="--own"
    )
    assert own.stdout == "the bundle --own\n"


def test_an_sglang_that_is_installed_stays(checkout: Path, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "own" / "sglang").mkdir(parents=True)
    (tmp_path / "own" / "sglang" / "__init__.py").write_text("WHOSE = 'its own'")
    done = run(checkout, bare, str(bare), "-c", ASKED, PYTHONPATH=str(tmp_path / "own"))
    assert done.stdout == "its own None\n"
    assert not (checkout / "build" / "gpu-sglang").exists()


def test_without_either_the_command_runs_and_its_status_is_told(checkout: Path, bare: Path) -> None:
    shutil.rmtree(checkout / "build")
    done = run(checkout, bare, sys.executable, "-c", "raise SystemExit(7)")
    assert (done.returncode, done.stderr) == (7, "")


def test_a_bundle_that_is_not_whole_ends_it(checkout: Path, bare: Path) -> None:
    with (checkout / "build" / "gpu-bundle" / "site.tar.xz").open("ab") as archive:
        archive.write(b"x")
    done = run(checkout, bare, "echo", "ran")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("kdtree: the bundle is not whole")


def test_no_command_is_bad_usage(checkout: Path, bare: Path) -> None:
    done = run(checkout, bare)
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
