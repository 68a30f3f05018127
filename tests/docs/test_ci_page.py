"""docs/supply-chain/ci.md: its commands, names and numbers are those of the workflows and scripts."""

from __future__ import annotations

import re
import subprocess

import yaml

import documents
from pinning import lockfile

PAGE = documents.ROOT / "docs" / "supply-chain" / "ci.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (documents.ROOT / ".github" / "workflows").glob("*.yml")
}
PLACEHOLDERS = {"IMAGE@DIGEST": f"127.0.0.1:1/a@sha256:{'0' * 64}", "OWNER/NAME": "a/b"}


def test_every_workflow_and_job_is_told_of() -> None:
    assert set(re.findall(r"^\| (\w+) \| (?:push|Mondays)", TEXT, re.M)) == set(WORKFLOWS)
    for job in WORKFLOWS["image"]["jobs"]:
        assert f"**{job}**" in TEXT


def test_the_environments_labels_and_numbers_are_the_workflows() -> None:
    jobs = WORKFLOWS["image"]["jobs"]
    environments = {job["environment"] for job in jobs.values() if "environment" in job}
    assert environments == {"gpu", "release"}
    assert all(f"`{name}`" in documents.section(PAGE, "Turn it on") for name in environments)
    assert all(f"`{label}`" in TEXT for label in jobs["gpu"]["runs-on"])
    rooms = [step["run"] for step in jobs["build"]["steps"] if "hosted-runner" in step.get("run", "")]
    assert [re.findall(r"--(?:engine|here) (\d+)", room) for room in rooms] == [["60", "20"]]
    assert "60 GB there or 20 GB for the archive" in TEXT
    pins = lockfile.load()
    assert lockfile.get(pins, "smoke-model.name").partition("/")[2] in TEXT
    assert f"less than {lockfile.get(pins, 'smoke-model.gpu-memory-gib')} GiB" in TEXT


def test_its_commands_are_taken() -> None:
    """Of each the parser takes the words: it gets as far as the machine, the GPU or the engine."""
    spoken = [words for block in documents.blocks(PAGE) for words in documents.commands(block)]
    ours = [[word for word in words if "=" not in word or word.startswith("-")] for words in spoken]
    ours = [words[words[0] == "sudo" :] for words in ours]
    assert [words[0] for words in ours if not words[0].startswith("ci/")] == ["systemctl"]
    for words in ours:
        if words[0] == "systemctl":
            continue
        command = [PLACEHOLDERS.get(word, word) for word in words]
        if command[0] == "ci/runner-setup":
            command.append("--dry-run")  # on such a machine, as root, it would set that up
        done = subprocess.run(
            [documents.ROOT / command[0], *command[1:]],
            env={"PATH": "/usr/bin:/bin", "DOCKER_HOST": "unix:///nonexistent", "KDTREE_JOB_DEVICE": "cpu"},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 64, f"{words}: {done.stderr}"


def test_the_lines_of_failures_are_printed_by_something() -> None:
    sources = [*(documents.ROOT / "ci").rglob("*"), *(documents.ROOT / "bench").glob("*.py")]
    told = "".join(
        path.read_text(errors="replace") for path in sources if path.is_file() and path.suffix in ("", ".py")
    )
    lines = [line for row in re.findall(r"^\| (`.*?) \|", TEXT, re.M) for line in re.findall(r"`([^`]+)`", row)]
    assert len(lines) >= 6
    assert [line for line in lines if line not in told] == []
