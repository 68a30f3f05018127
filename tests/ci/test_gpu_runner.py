"""The GPU runner's machine: what sets it up, and what takes one job at a time.

GitHub is a server on loopback here, and its runner a script that tells what it was given.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import runpy
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "deploy" / "runner"
USER = "nobody"
TELL = """#!/bin/sh
id -u >told
echo "$@" >>told
env | sort >environment
cat "$HOME/../token" >stolen 2>&1
cp told environment stolen ../kept/
"""


class GitHub:
    """What it was asked for, and what it answers."""

    def __init__(self, status: int) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        github = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                github.asked.append((self.path, self.headers["Authorization"], body))
                said = json.dumps({"encoded_jit_config": "once"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A machine's folders: the installed runner, the token, what a job leaves for us to see."""
    # pytest's own folders are closed to the runner's user.
    folder = Path("/var/tmp") / f"kdtree-runner-test-{os.getpid()}"
    (folder / "program").mkdir(parents=True)
    (folder / "program" / "run.sh").write_text(TELL)
    (folder / "program" / "run.sh").chmod(0o755)
    (folder / "kept").mkdir()
    (folder / "kept").chmod(0o777)
    (folder / "token").write_text("secret\n")
    (folder / "token").chmod(0o600)
    yield folder
    shutil.rmtree(folder)


def one_job(place: Path, github: GitHub) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        # The engine of these tests has other tests' containers: of none that answers, none is removed.
        "DOCKER_HOST": "unix:///nonexistent",
        "KDTREE_RUNNER_API": f"http://127.0.0.1:{github.server.server_port}",
        "KDTREE_RUNNER_TOKEN_FILE": str(place / "token"),
        "KDTREE_RUNNER_PROGRAM": str(place / "program"),
        "KDTREE_RUNNER_WORK": str(place / "job"),
        "KDTREE_RUNNER_REPOSITORY": "a/b",
        "KDTREE_RUNNER_LABELS": "self-hosted,kdtree-sm120",
        "KDTREE_RUNNER_USER": USER,
        "KDTREE_JOB_MODELS": "/models",
    }
    return subprocess.run([RUNNER / "one-job"], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="it starts the runner as another user, which takes root")
def test_a_job_runs_once_as_another_user_without_the_token(place: Path) -> None:
    github = GitHub(201)
    done = one_job(place, github)
    assert done.returncode == 0, done.stderr
    ((path, authorization, body),) = github.asked
    assert path == "/repos/a/b/actions/runners/generate-jitconfig"
    assert authorization == "Bearer secret"
    assert body["labels"] == ["self-hosted", "kdtree-sm120"]
    told = (place / "kept" / "told").read_text().splitlines()
    assert told == [str(pwd.getpwnam(USER).pw_uid), "--jitconfig once"]
    environment = (place / "kept" / "environment").read_text()
    assert "KDTREE_JOB_MODELS=/models" in environment
    assert "KDTREE_RUNNER" not in environment
    assert "secret" not in (place / "kept" / "stolen").read_text()
    assert not (place / "job").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="it starts the runner as another user, which takes root")
def test_a_refusal_of_github_is_one_line(place: Path) -> None:
    done = one_job(place, GitHub(403))
    assert done.returncode == 69
    assert done.stderr.startswith("kdtree: GitHub gives no runner for a/b: HTTP 403. Fix: a token")
    assert not (place / "kept" / "told").exists()


def test_the_labels_are_those_of_the_workflow() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "image.yml").read_text())
    said = subprocess.run(
        [ROOT / "ci" / "runner-setup", "--repository", "a/b", "--dry-run"], capture_output=True, text=True, check=True
    ).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("KDTREE_RUNNER_LABELS=")]
    assert line.partition("=")[2].split(",") == workflow["jobs"]["gpu"]["runs-on"]


@pytest.mark.skipif(platform.freedesktop_os_release()["ID"] == "ubuntu", reason="such a machine it would set up")
def test_setup_refuses_what_is_not_such_a_machine() -> None:
    done = subprocess.run([ROOT / "ci" / "runner-setup", "--repository", "a/b"], capture_output=True, text=True)
    assert done.returncode == 69
    assert done.stderr.startswith("kdtree: not Ubuntu 24.04 on x86_64: ")
    assert " Fix: " in done.stderr


def test_setup_refuses_a_name_that_is_none() -> None:
    done = subprocess.run([ROOT / "ci" / "runner-setup", "--repository", "a b"], capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (64, 1)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The program's names."""
    monkeypatch.syspath_prepend(ROOT / "ci")
    return runpy.run_path(str(ROOT / "ci" / "runner-setup"))


@pytest.mark.parametrize(
    ("driver", "capability", "good"),
    [
        ("580.65.06", "12.0", [True, True]),
        ("595.1", "12.0\n12.0", [True, True]),
        ("570.211.01", "12.0", [False, True]),
        ("580.65.06", "12.0\n9.0", [True, False]),
        ("", "", [False, False]),
    ],
)
def test_the_driver_and_the_cards_are_looked_at_before_all_else(
    setup: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    capability: str,
    good: list[bool],
) -> None:
    (tmp_path / "driver_version").write_text(driver)
    (tmp_path / "compute_cap").write_text(capability)
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\nexec cat "{tmp_path}/${{1#--query-gpu=}}"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert [step.done() for step in setup["steps"]("a/b")[:2]] == good


def test_a_token_that_was_half_kept_is_asked_for_again(
    setup: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(setup["has_token"].__globals__, "ETC", tmp_path)
    found = []
    for content in (None, "", "secret"):
        if content is not None:
            (tmp_path / "token").write_text(content)
        found.append(setup["has_token"]())
    assert found == [False, False, True]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (RUNNER / "kdtree-runner.service").read_text()
    unit = unit.replace("/usr/local/lib/kdtree-runner/one-job", str(RUNNER / "one-job"))
    (tmp_path / "kdtree-runner.service").write_text(unit.replace("docker.service", "").replace("Requires=\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "kdtree-runner.service"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
