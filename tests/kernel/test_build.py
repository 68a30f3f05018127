"""kernel/build.sh: the same bytes in any folder, a source hash that follows the sources, clear refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kdtree_verify.config import Device
from kdtree_verify.native import library
from kdtree_verify.native.abi import FUNCTIONS

ROOT = Path(__file__).parents[2]
NAME = "libkdtree_verify_host.so"


def _build(script: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs build.sh from the folder above its own."""
    command = ["sh", str(script), *map(str, arguments)]
    folder = script.parents[1]
    return subprocess.run(command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The kernel's sources in another folder, with newer times."""
    target = tmp_path / "a folder" / "kernel"
    shutil.copytree(ROOT / "kernel", target, copy_function=shutil.copyfile)
    return target


def test_same_bytes_in_any_folder(library_dir: Path, copied: Path) -> None:
    done = _build(copied / "build.sh", "host", copied.parent / "out", TMPDIR=str(copied))
    assert done.returncode == 0, done.stderr
    built = (copied.parent / "out" / NAME).read_bytes()
    assert built == (library_dir / NAME).read_bytes()
    assert str(ROOT).encode() not in built


def test_exports_the_abi_and_nothing_else(library_dir: Path) -> None:
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library_dir / NAME]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in output.splitlines()} == set(FUNCTIONS)


def test_source_hash_follows_the_library_s_own_sources(library_dir: Path, copied: Path) -> None:
    before = library.load(library_dir, Device.CPU).description.source_hash
    (copied / "cuda").mkdir(exist_ok=True)
    (copied / "cuda" / "other.cu").write_text("// not of the host library\n")
    (copied / "host" / "notes.txt").write_text("not a source\n")
    out = copied.parent / "out"
    assert _build(copied / "build.sh", "host", out).returncode == 0
    assert library.load(out, Device.CPU).description.source_hash == before
    assert _build(copied / "build.sh", "hash", "host").stdout.strip() == before
    assert _build(copied / "build.sh", "hash", "cuda").stdout.strip() != before
    with (copied / "host" / "library.cpp").open("a") as source:
        source.write("// changed\n")
    changed = copied.parent / "changed"  # a loaded library is not replaced
    assert _build(copied / "build.sh", "host", changed).returncode == 0
    assert library.load(changed, Device.CPU).description.source_hash != before


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        ((), {}, 64, "wrong number of arguments"),
        (("metal", "out"), {}, 64, "unknown library: metal"),
        (("hash", "metal"), {}, 64, "unknown library: metal"),
        *((("cuda", "out", archs), {}, 64, "no architectures for nvcc: ") for archs in ("90b", " ", "120a\n90a", "a")),
        (("host", "out"), {"CXX": "no-such-compiler"}, 69, "no C++ compiler: no-such-compiler"),
        (("cuda", "out"), {"NVCC": "no-such-nvcc"}, 69, "no CUDA compiler: no-such-nvcc"),
    ],
)
def test_refusals(copied: Path, arguments, environment, code: int, words: str) -> None:
    done = _build(copied / "build.sh", *arguments, **environment)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kdtree: {words}")
    assert " Fix: " in line
    assert not (copied.parent / "out").exists()  # nothing half-started
