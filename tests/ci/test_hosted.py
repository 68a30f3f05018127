"""What the workflows call on hosted runners, without one: room, the bare Debian, one pull request."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import standin

ROOT = Path(__file__).parents[2]
DIFF = """\
SGLang: nightly-2, after nightly-1

Contract: as expected
--- a/pins.toml
+++ b/pins.toml
@@ -1 +1 @@
-tag = 1
+tag = {0}
"""
# Says what it was asked; of pull requests it knows those in the file `open`.
GH = """#!/bin/sh
echo "$@" >>"$GH_LOG"
case "$1 $2" in "pr list") cat "$GH_OPEN" ;; esac
"""


def hosted_runner(root: Path, room: int, where: str = "github-hosted") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "ci" / "hosted-runner", f"--engine={room}", f"--root={root}"],
        env=os.environ | {"RUNNER_ENVIRONMENT": where},
        capture_output=True,
        text=True,
    )


def machine(folder: Path) -> Path:
    for name in ("usr/share/dotnet/sdk", "usr/share/doc", "usr/local/lib/android", "etc/docker", "opt/ours"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/docker/daemon.json").write_text('{"features": {"a": true}, "ip": "b"}')
    return folder


def test_room_is_made_of_what_nothing_uses(tmp_path: Path) -> None:
    root = machine(tmp_path)
    done = hosted_runner(root, room=0)
    assert done.returncode == 0, done.stderr
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    assert {"usr/share/doc", "opt/ours"} <= left
    assert not left & {"usr/share/dotnet", "usr/local/lib/android"}
    config = json.loads((root / "etc/docker/daemon.json").read_text())
    assert config == {"features": {"a": True, "containerd-snapshotter": True}, "ip": "b"}


def test_too_little_room_is_said(tmp_path: Path) -> None:
    done = hosted_runner(machine(tmp_path), room=10**6)
    assert done.returncode == 69
    assert done.stderr.startswith("kdtree: too little room on ")
    assert "1000000 GB needed" in done.stderr


@pytest.mark.parametrize("where", ["self-hosted", ""])
def test_nothing_is_deleted_anywhere_else(tmp_path: Path, where: str) -> None:
    root = machine(tmp_path)
    assert hosted_runner(root, room=0, where=where).returncode == 69
    assert (root / "usr/share/dotnet/sdk").exists()


# ---- one pull request


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of a repository on this disk, that has the script; gh is a script that says what it was asked."""
    origin, clone = tmp_path / "origin.git", tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "--quiet", "--bare", origin], check=True)
    subprocess.run([*git, "clone", "--quiet", origin, clone], check=True, capture_output=True)
    (clone / "ci").mkdir()
    (clone / "ci" / "pull-request").write_bytes((ROOT / "ci" / "pull-request").read_bytes())
    (clone / "ci" / "pull-request").chmod(0o755)
    (clone / "pins.toml").write_text("tag = 1\n")
    for command in (["add", "."], ["commit", "--quiet", "-m", "first"], ["push", "--quiet", "origin", "HEAD:main"]):
        subprocess.run([*git, "-C", clone, *command], check=True, capture_output=True)
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "open").write_text("")
    return clone


def propose(checkout: Path, diff: str) -> list[str]:
    """What gh was asked; starts from main again, as a workflow's checkout does."""
    folder = checkout.parent
    (folder / "log").write_text("")
    subprocess.run(["git", "-C", checkout, "switch", "--quiet", "--force-create", "main", "origin/main"], check=True)
    (folder / "change.diff").write_text(diff)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    environment |= {"GH_LOG": str(folder / "log"), "GH_OPEN": str(folder / "open")}
    done = subprocess.run(
        [checkout / "ci" / "pull-request", "pins/update", folder / "change.diff"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "log").read_text().splitlines()


def test_a_diff_becomes_one_pull_request_and_the_next_renews_it(checkout: Path) -> None:
    origin = checkout.parent / "origin.git"
    asked = propose(checkout, DIFF.format(2))
    assert "pr create --head pins/update --base main --title SGLang: nightly-2, after nightly-1" in "\n".join(asked)
    (checkout.parent / "open").write_text("7\n")
    asked = propose(checkout, DIFF.format(3))
    assert any(line.startswith("pr edit 7 ") for line in asked)
    assert not any(line.startswith("pr create") for line in asked)
    shown = ["git", "--git-dir", origin, "show", "pins/update:pins.toml"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "tag = 3\n"
    message = ["git", "--git-dir", origin, "log", "--format=%B", "main..pins/update"]
    assert subprocess.run(message, capture_output=True, text=True, check=True).stdout.strip() == (
        "SGLang: nightly-2, after nightly-1\n\nContract: as expected"
    )


def test_without_a_diff_there_is_nothing_to_propose(checkout: Path) -> None:
    done = subprocess.run(
        [checkout / "ci" / "pull-request", "pins/update", checkout / "none.diff"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "nothing to propose" in done.stdout


# ---- the bare Debian


@pytest.mark.docker
def test_the_bare_debian_is_root_in_this_checkout_and_may_mount() -> None:
    """Built where it is not there yet: on a new machine it never is, so early in the tests."""
    tried = "id -u; pwd; echo $CI $GIT_CONFIG_VALUE_0; . /etc/os-release; echo $ID $VERSION_ID; mount -t tmpfs x /mnt"
    done = subprocess.run(
        [ROOT / "ci" / "in-debian", "sh", "-c", tried],
        env=os.environ | {"KDTREE_DEBIAN": standin.debian(), "CI": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0", str(ROOT), f"true {ROOT}", "debian 12"]
