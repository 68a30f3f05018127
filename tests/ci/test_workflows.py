"""The workflows: what may start them and with which rights; and the image's three jobs, step by step, on stand-ins.

The engine, the registry, the image and every script are real. The image is on stand-in bases, the GPU runner has a CPU,
and who signs has a throw-away key.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import registry_server
from oci import names
from oci.client import Client
from oci.errors import Missing
from workflow_steps import ROOT, Job, Step, load

WORKFLOWS = {path.name: load(path.name) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
JOBS = {
    f"{file}: {name}": (workflow, job) for file, workflow in WORKFLOWS.items() for name, job in workflow["jobs"].items()
}
RIGHTS = {
    "check.yml: check": {"contents": "read"},
    "image.yml: build": {"contents": "read", "packages": "write"},
    "image.yml: gpu": {"contents": "read", "packages": "read"},
    "image.yml: promote": {"contents": "read", "packages": "write", "id-token": "write"},
    "pins.yml: look": {"contents": "read"},
    "pins.yml: propose": {"contents": "write", "pull-requests": "write"},
}
SHARED = ("pip", "wheelhouse", "standin", "lib", "engine", "registry", "cosign")


def triggers(workflow: dict[str, Any]) -> Any:
    return workflow[True]  # YAML 1.1 reads `on` as true


def test_each_job_has_the_rights_that_it_needs_and_no_other() -> None:
    assert {name: job["permissions"] for name, (_, job) in JOBS.items()} == RIGHTS
    assert all(workflow["permissions"] == {} for workflow in WORKFLOWS.values())


def test_where_others_code_runs_as_root_nothing_can_be_written() -> None:
    """It may do what it likes with the machine, and so with the job's token."""
    ran = {
        name: job["permissions"]
        for name, (_, job) in JOBS.items()
        if any("ci/in-debian" in step.get("run", "") for step in job["steps"])
    }
    assert ran == {"check.yml: check": {"contents": "read"}, "pins.yml: look": {"contents": "read"}}


def test_a_pull_request_starts_what_can_only_read() -> None:
    for name, (workflow, job) in JOBS.items():
        started = triggers(workflow)
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(started), name
        if "pull_request" in started:
            assert job["permissions"] == {"contents": "read"}, name
            assert job["runs-on"] == "ubuntu-24.04", name
            assert "secrets." not in json.dumps(job), name


def test_our_own_machine_takes_one_job_at_a_time_and_none_of_a_fork() -> None:
    ours = {name: job for name, (_, job) in JOBS.items() if "self-hosted" in job["runs-on"]}
    assert set(ours) == {"image.yml: gpu"}
    (job,) = ours.values()
    assert job["concurrency"] == {"group": "gpu", "cancel-in-progress": False}
    assert job["environment"] == "gpu"
    assert re.sub(r"\s+", " ", job["if"]).strip() == (
        "github.event.repository.fork == false && github.event_name != 'pull_request' && "
        "(github.ref == 'refs/heads/main' || startsWith(github.ref, 'refs/tags/v'))"
    )


def test_the_tag_comes_after_the_card_and_a_person_who_may() -> None:
    promote = WORKFLOWS["image.yml"]["jobs"]["promote"]
    assert set(promote["needs"]) == {"build", "gpu"}
    assert promote["environment"] == "release"
    assert "if" not in promote  # with a condition of its own it could run although a job before it did not


def test_no_script_holds_an_expression_and_no_checkout_keeps_the_token() -> None:
    for name, (_, job) in JOBS.items():
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), name
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}, name


def test_every_job_ends() -> None:
    assert all(job["timeout-minutes"] <= 480 for _, job in JOBS.values())


# ---- the image's jobs, as they are in the file


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of what is committed, with what this checkout has downloaded."""
    clone = tmp_path_factory.mktemp("workflow") / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    (clone / "build").mkdir()
    for path in (ROOT / "build").iterdir():
        if path.name in SHARED or path.name.startswith("syft-"):
            (clone / "build" / path.name).symlink_to(path)
    return clone


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry_server.running(tmp_path_factory.mktemp("registry")) as found:
        yield found.address


@pytest.fixture(scope="module")
def machine(registry: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """GitHub's variables, the registry in place of its, and a client's configuration that logins are kept in."""
    client = tmp_path_factory.mktemp("client")
    config = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "config.json"
    (client / "config.json").write_text(config.read_text() if config.exists() else "{}")
    return {
        "REGISTRY": registry,
        "DOCKER_CONFIG": str(client),
        "GITHUB_ACTOR": "someone",
        "GITHUB_REPOSITORY": "Some-One/KDTree",
        "GITHUB_REF": "refs/heads/main",
        "GITHUB_SERVER_URL": "https://github.com",
        "KDTREE_JOB_DEVICE": "cpu",
        "COSIGN_PASSWORD": "",
    }


@pytest.fixture(scope="module")
def key(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A throw-away key of cosign's."""
    folder = tmp_path_factory.mktemp("key")
    program = subprocess.run([ROOT / "ci" / "cosign"], capture_output=True, text=True, check=False)
    if program.returncode != 0:
        pytest.skip(program.stderr.strip())
    make = [program.stdout.strip(), "generate-key-pair"]
    subprocess.run(make, cwd=folder, env={**os.environ, "COSIGN_PASSWORD": ""}, check=True, capture_output=True)
    return folder / "cosign"


class Artifacts:
    """upload-artifact and download-artifact, in a folder."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self._checkout, self._folder = checkout, folder

    def upload(self, given: dict[str, Any]) -> None:
        files = [path for pattern in given["path"].split() for path in self._checkout.glob(pattern)]
        assert files or given["if-no-files-found"] != "error", given["path"]
        for path in files:
            target = self._folder / given["name"] / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)

    def download(self, given: dict[str, Any]) -> None:
        shutil.copytree(self._folder / given["name"], self._checkout / given["path"], dirs_exist_ok=True)


def passed(steps: list[Step]) -> None:
    for step in steps:
        assert step.code == 0, f"{step.name}\n{step.command}\n{step.output[-4000:]}"


def hold_the_test_stage_to_its_word(checkout: Path) -> None:
    """Of the test stage: not root, the package and libraries of the image, and a bench that says what it lacks."""
    revision = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=checkout, capture_output=True, text=True)
    listed = ["docker", "image", "ls", "--format={{.Repository}}:{{.Tag}}", "kdtree-test"]
    names_ = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    (built,) = [name for name in names_ if name.endswith(f"-{revision.stdout.strip()}")]
    shown = 'id -u; echo "$KDTREE_LIBRARY_DIR"; $PYTHON -c "import kdtree_verify as k; print(k.__file__)"; ci/bench'
    run = ["docker", "run", "--rm", "--network=none", built, "bash", "-c", shown]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    user, libraries, package = done.stdout.splitlines()
    assert (user, libraries) == ("1000", "/opt/kdtree/lib")
    assert package.startswith("/opt/sglang/lib/")
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].startswith("kdtree: no GPU: /opt/sglang/bin/python: ")


@pytest.mark.docker
@pytest.mark.skipif(registry_server.binary() is None, reason="no docker-registry (ci/registry fetches it)")
def test_the_image_is_built_pushed_tested_signed_and_promoted(
    checkout: Path, machine: dict[str, str], registry: str, key: Path, tmp_path: Path
) -> None:
    artifacts = Artifacts(checkout, tmp_path / "artifacts")
    actions = {
        "actions/checkout": lambda given: None,
        "actions/upload-artifact": artifacts.upload,
        "actions/download-artifact": artifacts.download,
        "sigstore/cosign-installer": lambda given: None,
    }
    source = {"github.server_url": "https://github.com", "github.repository": "Some-One/KDTree"}
    secret = {"secrets.GITHUB_TOKEN": "token"}

    def job(name: str, known: dict[str, str], stand_ins: dict[str, str]) -> Job:
        scratch = tmp_path / name
        scratch.mkdir()
        return Job(WORKFLOWS["image.yml"], name, checkout, scratch, known, machine, actions, stand_ins)

    build = job(
        "build",
        source | secret,
        {
            # It makes room on a machine of GitHub's, as root.
            "sudo --preserve-env=GITHUB_ACTIONS,RUNNER_ENVIRONMENT ci/hosted-runner": ": ",
            # The pinned bases are in a registry. An archive of gigabytes takes a minute: test_reproduce has one.
            "ci/image --archive build/kdtree.tar": "ci/image --stand-in",
        },
    )
    passed(build.run())
    assert build.replaced == set(build.stand_ins)
    by_digest = build.outputs()["image"]
    assert re.fullmatch(rf"{registry}/some-one/kdtree@sha256:[0-9a-f]{{64}}", by_digest)
    repository, digest = names.by_digest(by_digest)
    with pytest.raises(Missing):  # a registry has no repository that has no tag
        Client(repository).tags()

    # `make demo` serves in three modes; here it would take minutes more.
    gpu = job("gpu", secret | {"needs.build.outputs.image": by_digest}, {'ci/gpu-job smoke "$IMAGE"': ":"})
    steps = gpu.run()
    passed(steps)
    said = {step.name: step.output for step in steps}
    assert "torch sees no NVIDIA GPU" in said["make gpu-test, inside the image"]
    assert "18 cells" in said["make bench, inside the image"]
    left = subprocess.run(["docker", "ps", "-aq", "--filter=label=kdtree.job"], capture_output=True, text=True)
    assert left.stdout == ""

    hold_the_test_stage_to_its_word(checkout)

    promote = job(
        "promote",
        secret | {"needs.build.outputs.image": by_digest},
        {
            'ci/sign "$IMAGE"': f'ci/sign "$IMAGE" --key {key}.key',
            '--source "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"': f"--key {key}.pub",
        },
    )
    passed(promote.run())
    assert promote.replaced == set(promote.stand_ins)
    labels = json.loads((checkout / "build" / "image.json").read_text())["labels"]
    version, revision = (labels[f"org.opencontainers.image.{name}"] for name in ("version", "revision"))
    assert Client(repository).digest(f"{version}-{revision[:12]}") == digest
    subprocess.run(["docker", "image", "rm", "--force", by_digest], capture_output=True, check=False)


def test_a_step_that_fails_ends_the_job_but_for_what_is_always_done(tmp_path: Path) -> None:
    """The executor of these tests itself: GitHub's rules of what runs after a failure."""
    steps = [
        {"run": "echo a=b >>$GITHUB_OUTPUT", "id": "x"},
        {"run": 'test "$A" = b', "env": {"A": "${{ steps.x.outputs.a }}"}},
        {"run": "false | true"},
        {"run": "echo not this"},
        {"run": "echo this", "if": "always()"},
    ]
    workflow = {"defaults": {"run": {"shell": "bash"}}, "jobs": {"a": {"steps": steps}}}
    done = Job(workflow, "a", tmp_path, tmp_path).run()
    assert [(step.code, step.output) for step in done] == [(0, ""), (0, ""), (1, ""), (0, "this\n")]
