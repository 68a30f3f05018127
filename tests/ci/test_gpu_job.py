"""ci/gpu-job's steps one by one, with real containers: what they remove, what they refuse, how they end.

All of them in order, as the workflow has them: test_workflows.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry_server
import standin
from gpu_job import image
from gpu_job.clean import clean
from gpu_job.engine import EXIT_UNAVAILABLE, LABEL, JobError

ROOT = Path(__file__).parents[2]
DIGEST = f"sha256:{'0' * 64}"
# A step that runs a container for as long as nobody ends it, by the command's own way to do so.
LONG = """
import sys
from gpu_job import __main__ as command
from gpu_job.engine import run_in
container = sys.argv.pop()
command.OF_AN_IMAGE["doctor"] = lambda name, device: run_in("long", container, "sleep", "300")
sys.argv = ["gpu-job", "doctor", "a@sha256:" + "0" * 64]
sys.exit(command.main())
"""


def gpu_job(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "ci" / "gpu-job", *words],
        env=os.environ | {"KDTREE_JOB_DEVICE": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert done.stderr.startswith("kdtree: ")
    assert " Fix: " in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.fixture(scope="module")
def debian() -> str:
    return standin.debian()


@pytest.fixture
def containers(debian: str) -> Iterator[dict[str, str]]:
    """One that a job left running, one that it left stopped, one of somebody else's."""
    made = {}
    for name, label in (("running", f"{LABEL}=x"), ("stopped", f"{LABEL}=x"), ("other", "some=other")):
        does = ["true"] if name == "stopped" else ["sleep", "300"]
        command = ["docker", "run", "--detach", f"--label={label}", debian, *does]
        made[name] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    yield made
    subprocess.run(["docker", "rm", "--force", *made.values()], capture_output=True, check=False)


def present() -> set[str]:
    listed = subprocess.run(["docker", "ps", "-aq", "--no-trunc"], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


@pytest.mark.docker
def test_stale_containers_go_and_others_stay(containers: dict[str, str]) -> None:
    removed = clean()
    assert len([line for line in removed if line.startswith("container ")]) >= 2
    assert present() & set(containers.values()) == {containers["other"]}


@pytest.mark.docker
def test_other_digests_of_the_image_go(debian: str, tmp_path: Path) -> None:
    if registry_server.binary() is None:
        pytest.skip("no docker-registry (ci/registry fetches it)")
    with registry_server.running(tmp_path) as registry:
        made = []
        for content in ("a", "b"):
            (tmp_path / content).write_text(content)
            subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / "tar", content], check=True)
            name = f"kdtree-gpu-job-test:{content}"
            subprocess.run(["docker", "import", tmp_path / "tar", name], check=True, capture_output=True)
            push = [ROOT / "ci" / "push", name, f"{registry.address}/a"]
            made.append(subprocess.run(push, capture_output=True, text=True, check=True).stdout.strip())
            subprocess.run(["docker", "image", "rm", name], check=True, capture_output=True)
            assert gpu_job("pull", made[-1]).returncode == 0
        assert all(image.has(name) for name in made)
        assert f"image {made[0]}" in gpu_job("clean", "--keep", made[1]).stderr
        assert [image.has(name) for name in made] == [False, True]
        assert gpu_job("pull", made[1]).returncode == 0  # it is here: nothing is asked
        subprocess.run(["docker", "image", "rm", made[1]], check=True, capture_output=True)


@pytest.mark.docker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_step_leaves_no_container(debian: str, number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG, debian],
        env=os.environ | {"PYTHONPATH": str(ROOT / "ci"), "KDTREE_JOB_DEVICE": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
    ) as step:
        assert waited_for("running")
        step.send_signal(number)
        time.sleep(0.1)
        step.send_signal(signal.SIGTERM)  # as GitHub does: it does not end the undoing
        _, said = step.communicate(timeout=60)
    assert step.returncode == 128 + number
    last = said.splitlines()[-1]  # Docker may have warned of the machine before
    assert last == f"kdtree: doctor was ended by {signal.Signals(number).name}: nothing of it runs any more"
    assert not waited_for("running", seconds=0)


def waited_for(state: str, seconds: float = 60) -> bool:
    """Whether the step's container comes to that state."""
    deadline = time.monotonic() + seconds
    command = ["docker", "ps", "--quiet", "--filter=name=kdtree-job-long", f"--filter=status={state}"]
    while True:
        if subprocess.run(command, capture_output=True, text=True, check=True).stdout:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


@pytest.mark.docker
def test_an_image_that_the_registry_lost_is_said(tmp_path: Path) -> None:
    if registry_server.binary() is None:
        pytest.skip("no docker-registry (ci/registry fetches it)")
    with registry_server.running(tmp_path) as registry:
        refused(gpu_job("pull", f"{registry.address}/a@{DIGEST}"), 1, "no such image", DIGEST)
    refused(gpu_job("pull", f"127.0.0.1:9/a@{DIGEST}"), 69, "does not answer")


@pytest.mark.docker
def test_a_step_without_the_image_says_what_to_do_first() -> None:
    for verb in ("gpu-test", "bench"):
        refused(gpu_job(verb, f"127.0.0.1:9/a@{DIGEST}"), 1, f"ci/gpu-job pull 127.0.0.1:9/a@{DIGEST}")


@pytest.mark.docker
def test_too_little_room_is_said_before_anything_is_pulled() -> None:
    image.need_room(1)
    with pytest.raises(JobError, match=r"too little room .* GiB needed, \d+ GiB free\. Fix: ") as told:
        image.need_room(1 << 60)
    assert told.value.code == EXIT_UNAVAILABLE


@pytest.mark.parametrize(
    ("words", "environment", "word"),
    [
        (("smoke", "a:tag"), {}, "'a:tag'"),
        (("smoke",), {}, "image"),
        (("fly",), {}, "fly"),
        (("compare",), {"KDTREE_JOB_DEVICE": "tpu"}, "'tpu'"),
    ],
)
def test_bad_usage_is_one_line(words: tuple[str, ...], environment: dict[str, str], word: str) -> None:
    done = gpu_job(*words, **environment)
    refused(done, done.returncode, word)
    assert done.returncode in (1, 64)


def test_what_the_test_stage_gets_is_the_checkout_without_the_patch(tmp_path: Path) -> None:
    image.carry(tmp_path)
    found = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert {"ci/gpu-test", "ci/bench", "tests/conftest.py", "proof/__init__.py", "pyproject.toml"} <= found
    assert not [name for name in found if name.startswith(("patch/src", "build", ".git", "docs"))]
    assert os.access(tmp_path / "tree" / "ci" / "gpu-test", os.X_OK)
    wheels = {path.name.partition("-")[0] for path in (tmp_path / "wheels").glob("*.whl")}
    assert "pytest" in wheels


def test_the_summary_tells_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_job import steps

    monkeypatch.setattr(steps, "OUT", tmp_path)
    shutil.copy(ROOT / "docs" / "benchmark" / "h200.json", tmp_path / "bench.json")
    (tmp_path / "smoke.json").write_text(json.dumps({"model": "m", "table": "a table"}))
    steps.summary(tmp_path / "summary.md")
    text = (tmp_path / "summary.md").read_text()
    assert "off, validate and on with m" in text
    assert "1.000 times the recorded time" in text
