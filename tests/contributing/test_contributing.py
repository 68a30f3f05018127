"""CONTRIBUTING.md: its commands are run in a fresh clone, what its tables name is there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pinning import cli as pins

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh( run)?(?:=(\w+))?\n(.*?)^```", PAGE, re.M | re.S)
RUN = [(name, text) for run, name, text in BLOCKS if run]
SHARED = ("venv", "cuda", "wheelhouse", "bench-peers")
"""Of build/, what a clone need not make again: the environment and unpacked tools."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed sources in a folder of their own."""
    folder = tmp_path_factory.mktemp("clone") / "kdtree"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
    (folder / "build" / "lib").mkdir(parents=True)
    for name in SHARED:
        if (ROOT / "build" / name).exists():
            (folder / "build" / name).symlink_to(ROOT / "build" / name)
    return folder


def ran(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A block as a reader types it, in the clone and with the clone's own modules."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KDTREE_")}
    environment["PYTHONPATH"] = str(folder / "patch" / "src")
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_there_are_blocks_for_each_of_a_contributor_s_ways() -> None:
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    titles = [title for title, text in sections if "```sh run" in text]
    assert titles == ["Build", "Test", "Benchmark", "Move to another SGLang", "Add a dtype", "Add an architecture"]


@pytest.mark.parametrize(("name", "script"), RUN, ids=[name or script.split("\n")[0] for name, script in RUN])
def test_commands_do_what_they_say(clone: Path, name: str, script: str) -> None:
    done = ran(clone, script)
    assert done.returncode == 0, done.stdout[-3000:]
    if name == "dtype":
        assert re.search(r"^\d+ passed, \d+ deselected", done.stdout, re.M), done.stdout
        assert "float16" in (clone / "tests" / "kernel" / "test_attention.py").read_text()
        subprocess.run(["git", "checkout", "--quiet", "."], cwd=clone, check=True)
    if name == "architecture":
        report = (clone / "build" / "kernel-report.json").read_text()
        assert '"arch": "sm_100a"' in report
        assert not re.search(r'"spill_\w+": [1-9]', report)


def test_a_dtype_that_is_half_added_is_found(clone: Path) -> None:
    """The walk's test fails where one of its steps is left out: the mirror in Python."""
    left_out = "--exclude=patch/src/kdtree_verify/native/*"
    done = ran(
        clone,
        f"git apply {left_out} docs/contributing/float16-pool.diff\n"
        "build/venv/bin/python -m pytest -q tests/kernel/test_abi.py -k enumerator",
    )
    subprocess.run(["git", "checkout", "--quiet", "."], cwd=clone, check=True)
    assert done.returncode == 1, done.stdout
    assert "KDTREE_F16" in done.stdout


@pytest.mark.parametrize("script", [text for _, _, text in BLOCKS])
def test_verbs_and_programs_exist(script: str) -> None:
    verbs = re.findall(r"^([a-z-]+):  ##", (ROOT / "Makefile").read_text(), re.M)
    for line in script.splitlines():
        words = re.sub(r"^(\w+=\S+ )*", "", line.partition("#")[0]).split()
        if not words or re.match(r"\w+=", words[0]):
            continue
        if words[0] == "make":
            assert words[1] in verbs, line
        elif words[0] == "ci/pins":
            assert re.search(rf"^ci/pins {words[1]}\b", pins.__doc__ or "", re.M), line
        elif "/" in words[0] and not words[0].startswith("build/"):
            assert os.access(ROOT / words[0], os.X_OK), line


def cells(title: str) -> list[str]:
    """The first cells of a section's table."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (`.*?) \|", section, re.M)


@pytest.mark.parametrize("cell", [*cells("Add a dtype"), *cells("Add an architecture")])
def test_what_a_walk_names_is_there(cell: str) -> None:
    """Each code span is a file, or a name in one of the files before it in its cell."""
    files: list[Path] = []
    for code in re.findall(r"`([^`]+)`", cell):
        if "/" in code:
            files.append(ROOT / code)
            assert files[-1].exists(), code
        elif not code.startswith("make "):
            assert any(re.search(rf"\b{re.escape(code)}\b", file.read_text()) for file in files if file.is_file()), code
