"""ci/first-build as it is called: to its end on stand-ins, interrupted, killed, without Docker, on a full disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from first_building import gpus, toolchain
from first_building.site import ROOT, Site, pinned
from first_building.step import NotSo
from pinning import lockfile

docker = pytest.mark.docker
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "ci")}
COMMAND = [sys.executable, "-m", "first_building"]
BOUND = 60.0


def steps_of(folder: Path) -> dict[str, Any]:
    steps: dict[str, Any] = json.loads((folder / "first-build.json").read_text())["steps"]
    return {name: step["status"] for name, step in steps.items()}


def identity(folder: Path) -> str:
    return str(json.loads((folder / "first-build.json").read_text())["identity"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A stand-in run as far as the built image; it is the one that the tests of the image are about."""
    folder = tmp_path_factory.mktemp("first-build")
    command = [ROOT / "ci" / "first-build", "--stand-in", "--until=library", f"--out={folder}"]
    return subprocess.run(command, env=os.environ | {"HF_TOKEN": "hf_secret"}, capture_output=True, text=True), folder


@docker
def test_it_builds_and_reports_on_stand_ins(built: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = built
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not run: driver, toolkit, hashes, doctor, selftest, smoke" in done.stdout
    found = steps_of(folder)
    assert {name for name, status in found.items() if status == "ok"} >= {"digests", "pull", "assumptions", "library"}
    text = (folder / "first-build.md").read_text()
    assert text.startswith("## First build (stand-in: no real registry, base or GPU): ok as far as it was run")
    assert "23 of 23 hold" in text
    assert "| doctor | not run | --until library |" in text
    assert str(ROOT) not in text
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@docker
def test_the_kernel_is_proved_by_what_is_in_the_image(
    built: tuple[subprocess.CompletedProcess[str], Path], program: Callable[[str, str], None], site: Site
) -> None:
    """The real image; docker is asked for the host library in place of a card that is not here."""
    assert built[0].returncode == 0
    real = shutil.which("docker")
    # What needs a card is left out, and what says so put in.
    program(
        "docker",
        f'for word; do shift; case $word in --gpus=all|--ulimit=*) ;; run) set -- "$@" run -eKDTREE_DEVICE=cpu ;; '
        f'*) set -- "$@" "$word" ;; esac; done; exec {real} "$@"',
    )
    here = Site((), site.out, stand_in=True, data={"toolkit": {"way": "runtime"}, "driver": {"gpus": [{}]}})
    assert gpus.selftest(here).summary == "passed on 1"


def test_the_pinned_toolchain_s_row_is_shown_as_it_is_pasted(
    program: Callable[[str, str], None], tmp_path: Path
) -> None:
    """Where docker is one that compiles what ci/kernel did."""
    lib = ROOT / "build" / "lib"
    program(
        "docker",
        "for word; do case $word in --volume=*) kernel=${word#--volume=} ;; esac; done; "
        f'mkdir "${{kernel%:*}}/lib"; cp "{lib}"/libkdtree_verify_* "${{kernel%:*}}/lib"',
    )
    sha256 = hashlib.sha256((lib / "libkdtree_verify_cuda.so").read_bytes()).hexdigest()
    here = Site(pinned(), tmp_path, data={"library": {"libraries": {"cuda": {"sha256": sha256}}}})
    found = toolchain.hashes(here)
    shown = tomllib.loads(found.detail)
    assert shown["toolchain"] == [found.data]
    assert (found.data["of"], found.data["cuda"]) == (lockfile.get(lockfile.load(), "images.cuda-devel"), sha256)
    assert shown["cubins"].keys() <= {*found.data["tools"]}
    assert not (tmp_path / "first-build-kernel").exists()
    here.data["library"] = {"libraries": {"cuda": {"sha256": "other"}}}
    with pytest.raises(NotSo, match="one toolchain made two libraries of one source: the image's library is other, "):
        toolchain.hashes(here)


def start(*arguments: str, path: str | None = None) -> subprocess.Popen[str]:
    environment = os.environ | ENVIRONMENT | ({"PATH": path} if path else {})
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, path=path)
    output, error = process.communicate(timeout=BOUND)
    return subprocess.CompletedProcess(arguments, process.returncode, output, error)


def hanging(tmp_path: Path, program: Callable[[str, str], None], *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A run whose docker pulls for ever, and the process that does."""
    file = tmp_path / "pid"
    program("docker", f'[ "$1" != pull ] || {{ echo $$ >{file}; exec sleep 600; }}; exec {shutil.which("docker")} "$@"')
    process = start("--stand-in", "--until=pull", f"--out={tmp_path}", *arguments)
    deadline = time.monotonic() + BOUND
    while not (file.exists() and file.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, int(file.read_text())


@docker
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_a_report_and_no_process(
    tmp_path: Path, program: Callable[[str, str], None], number: int, code: int
) -> None:
    process, pulling = hanging(tmp_path, program)
    process.send_signal(number)
    output, error = process.communicate(timeout=BOUND)
    assert process.returncode == code
    assert "kdtree: the first build was interrupted; call it again and it goes on" in error
    assert output.startswith("interrupted: at pull")
    assert "| pull | interrupted |" in (tmp_path / "first-build.md").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(pulling, 0)
    with pytest.raises(ProcessLookupError):  # the registry's too, which was in its group
        os.killpg(process.pid, 0)


@docker
def test_a_run_that_was_killed_is_gone_on_with(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    process, pulling = hanging(tmp_path, program)
    os.killpg(process.pid, signal.SIGKILL)
    os.killpg(pulling, signal.SIGKILL)
    process.communicate()
    assert steps_of(tmp_path)["pull"] == "under way"
    assert "under way: at pull" in (tmp_path / "first-build.md").read_text()
    program("docker", "exit 1")
    before = identity(tmp_path)
    again = run("--stand-in", "--until=pull", f"--out={tmp_path}")
    if identity(tmp_path) != before:
        pytest.skip("somebody has changed the sources meanwhile")
    assert "first-build: digests: ok in the earlier run" in again.stderr


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A PATH with what the checkout needs, and no Docker."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("git", "hostname", "sh", "bash", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


def test_without_docker_the_report_says_so(tmp_path: Path, bare: str) -> None:
    done = run(f"--out={tmp_path}", "--until=disk", path=bare)
    assert done.returncode == 1
    assert (
        "first-build: docker: NOT SO: Docker is missing: no docker on PATH. Fix: install Docker Engine" in done.stderr
    )
    found = steps_of(tmp_path)
    assert found["driver"] == "not so"
    assert {found[name] for name in ("buildx", "toolkit", "digests", "pull", "build", "smoke")} == {"not run"}
    assert "not so: docker, driver" in done.stdout


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB, which is full and has an earlier report."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk of its own can be mounted here: {mounted.stderr.strip()}")
    (folder / "first-build.json").write_text("earlier")
    (folder / "filler").write_bytes(b"\0" * (60 << 10))
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_one_line(small: Path, bare: str) -> None:
    done = run(f"--out={small}", "--until=disk", path=bare)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("kdtree: "))
    assert line.startswith("kdtree: the report cannot be written: [Errno 28] No space left on device")
    assert line.endswith("Fix: room, or --out FOLDER")
    assert {path.name for path in small.iterdir()} == {"filler", "first-build.json"}
    assert (small / "first-build.json").read_text() == "earlier"


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--until=nowhere"]])
def test_a_bad_argument_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    done = run(f"--out={tmp_path / 'out'}", *arguments)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 64
    assert line.startswith("kdtree: bad usage of ci/first-build: ")
    assert "Fix: see ci/first-build --help" in line
    assert not (tmp_path / "out").exists()
