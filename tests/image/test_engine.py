"""ci/engine's private engine: killed, started twice, in two checkouts at once, stopped with nothing left.

Each test's checkout is a folder of its own with ci/'s files; the unpacked packages are shared, for time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from engine_private import EngineError, PrivateEngine, host_routes

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "BUILDX_"))}


def engine(checkout: Path, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    command = [checkout / "ci" / "engine", *arguments]
    return subprocess.run(command, env=ENVIRONMENT | options, capture_output=True, text=True, timeout=120)


def processes(checkout: Path) -> list[int]:
    """Everything that a checkout's engine runs."""
    programs = ("dockerd", "containerd", "containerd-shim-runc-v2", "docker-proxy")
    return PrivateEngine(checkout / "build")._own_processes(*programs)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes checkouts; their engines are stopped at the end."""
    debs, compose = (ROOT / "build" / "engine" / name for name in ("debs", "compose"))
    if os.geteuid() != 0 or not debs.exists():
        pytest.skip("no private engine here: an engine was there already")
    made = []

    def make(name: str) -> Path:
        folder = tmp_path / name
        (folder / "ci").mkdir(parents=True)
        (folder / "build" / "engine").mkdir(parents=True)
        for file in (path for name in ("command_line.py", "engine*", "pins*") for path in (ROOT / "ci").glob(name)):
            if file.is_file():
                shutil.copy(file, folder / "ci")
        shutil.copytree(ROOT / "ci" / "pinning", folder / "ci" / "pinning")
        for shared in (debs, compose):
            (folder / "build" / "engine" / shared.name).symlink_to(shared)
        made.append(folder)
        return folder

    yield make
    for folder in made:
        engine(folder, "stop")


def test_it_lives_as_long_as_the_command(checkout: Callable[[str], Path]) -> None:
    folder = checkout("one")
    ran = engine(folder, "run", "sh", "-c", "docker version >/dev/null && docker-buildx version && exit 7")
    assert ran.returncode == 7, ran.stderr
    assert processes(folder) == []
    private = PrivateEngine(folder / "build")
    assert not private.run.exists()
    assert private.bridge not in {interface for interface, _ in host_routes()}


def test_started_it_stays_until_stopped(checkout: Callable[[str], Path]) -> None:
    folder = checkout("one")
    assert engine(folder, "start").returncode == 0
    assert engine(folder, "start").returncode == 0
    assert len(processes(folder)) == 2  # dockerd and its containerd
    assert engine(folder, "run", "docker", "ps").returncode == 0
    assert engine(folder, "status").returncode == 0
    assert engine(folder, "stop").returncode == 0
    assert engine(folder, "status").returncode == 1
    assert processes(folder) == []


def test_two_checkouts_do_not_meet(checkout: Callable[[str], Path]) -> None:
    one, two = checkout("one"), checkout("two")
    assert engine(one, "start").returncode == 0
    create = engine(two, "run", "sh", "-c", "docker network create n && docker network ls -q && docker network rm n")
    assert create.returncode == 0, create.stderr
    assert engine(one, "run", "docker", "network", "ls", "--quiet").returncode == 0
    assert processes(two) == []
    assert len(processes(one)) == 2


def test_it_comes_back_after_a_kill(checkout: Callable[[str], Path]) -> None:
    folder = checkout("one")
    assert engine(folder, "start").returncode == 0
    engine(folder, "run", "docker", "network", "create", "left")
    for pid in processes(folder):
        with suppress(ProcessLookupError):  # containerd ends when its dockerd does
            os.kill(pid, signal.SIGKILL)
    again = engine(folder, "run", "docker", "version")
    assert again.returncode == 0, again.stderr
    assert engine(folder, "stop").returncode == 0
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_a_killed_user_leaves_it_to_the_next(checkout: Callable[[str], Path]) -> None:
    folder = checkout("one")
    user = subprocess.Popen([folder / "ci" / "engine", "run", "sleep", "300"], env=ENVIRONMENT, start_new_session=True)
    private = PrivateEngine(folder / "build")
    deadline = time.monotonic() + 60
    while not private.answers():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(user.pid, signal.SIGKILL)
    user.wait()
    assert private.answers()
    assert engine(folder, "run", "docker", "version").returncode == 0
    assert processes(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_command_and_engine(checkout: Callable[[str], Path], number: signal.Signals) -> None:
    folder = checkout("one")
    command = [folder / "ci" / "engine", "run", "sh", "-c", "echo up; exec sleep 300"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "up\n"
        user.send_signal(number)
        assert user.wait(timeout=60) == 128 + number
    assert processes(folder) == []


def test_without_root_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = SourceFileLoader("engine_command", str(ROOT / "ci" / "engine"))
    command = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(command)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineError, match=r"you are not root.*Fix: install"):
        command.private_engine(gpu_hook=False)
