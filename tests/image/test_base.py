"""docker/base-assumptions.toml: each assumption, broken, is one clear line; the Dockerfile's build stops there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers import ROOT, Ran
from pinning import lockfile

pytestmark = pytest.mark.docker

LIST = (ROOT / "docker" / "base-assumptions.toml").read_text()
COMMIT = lockfile.get(lockfile.load(), "sglang.commit")


@pytest.fixture
def check(run: Callable[..., Ran], image: dict[str, Any], tmp_path: Path) -> Callable[..., Ran]:
    """check_base.py in the base image, with a list, a commit, and the options of a container."""

    def checked(assumptions: str = LIST, commit: str = COMMIT, *flags: str, **options: Any) -> Ran:
        tmp_path.chmod(0o755)  # for whatever user the container has
        (tmp_path / "list.toml").write_text(assumptions)
        volumes = {
            str(ROOT / "docker" / "check_base.py"): {"bind": "/check_base.py", "mode": "ro"},
            str(tmp_path): {"bind": "/list", "mode": "ro"},
        }
        command = ("/check_base.py", *flags, "/list/list.toml", commit)
        return run(*command, image=image["base"], entrypoint="/opt/sglang/bin/python", volumes=volumes, **options)

    return checked


def test_the_base_is_as_assumed(check: Callable[..., Ran]) -> None:
    found = check()
    assert (found.code, found.output) == (0, "")


def test_every_assumption_is_told_and_not_the_wrong_ones_alone(check: Callable[..., Ran]) -> None:
    found = check(LIST, "0123", "--json", environment={"VIRTUAL_ENV": "/opt/sglang"})
    told = json.loads(found.output)
    assert found.code == 78
    assert len(told) > 15
    assert [each["what"] for each in told if not each["holds"]] == [
        "SGLANG_BUILD_COMMIT begins with 0123",
        "VIRTUAL_ENV is not set",
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("/opt/sglang/bin/python", "/opt/venv/bin/python", "Python is /opt/venv/bin/python: /opt/sglang/bin/python"),
        ('minimum = "3.11"', 'minimum = "3.12"', "Python is at least 3.12"),
        ('"setuptools"]', '"setuptools", "nosuch"]', "has nosuch"),
        ("/sgl-workspace/sglang/python", "/src/sglang", "editable install under /src/sglang"),
        ('below = "0.5.24"', 'below = "0.5.22"', "SGLang is at least 0.5.20 and below 0.5.22: 0.5.23"),
        ("compute,utility", "all", "NVIDIA_DRIVER_CAPABILITIES is all"),
        ('home = "/root"', 'home = "/home/sglang"', "home folder is /home/sglang"),
        ("/root/.cache", "/var/cache/sglang", "/var/cache/sglang exists"),
        ("nvidia_entrypoint.sh", "other.sh", "/opt/nvidia/other.sh exists"),
        ("unreadable-bytes = 1048576", "unreadable-bytes = -1", "bytes of /root/.cache are root's alone to read: 0"),
    ],
)
def test_a_base_that_differs(check: Callable[..., Ran], old: str, new: str, words: str) -> None:
    assert old in LIST
    found = check(LIST.replace(old, new))
    lines = found.output.splitlines()
    assert (found.code, len(lines)) == (78, 1), found.output
    assert lines[0].startswith("kdtree: base image: not so: ")
    assert words in lines[0]
    assert "Fix: " in lines[0]


def test_variables_that_differ(check: Callable[..., Ran]) -> None:
    assert "VIRTUAL_ENV is not set" in check(environment={"VIRTUAL_ENV": "/opt/sglang"}).output
    assert "TRITON_CACHE_DIR is not set" in check(environment={"TRITON_CACHE_DIR": "/opt/triton"}).output
    assert "SGLANG_BUILD_COMMIT begins with" in check(environment={"SGLANG_BUILD_COMMIT": "0123"}).output
    assert "user is 0: 1000" in check(user="1000").output


def test_the_build_stops_at_a_base_that_differs(image: dict[str, Any]) -> None:
    pinned = lockfile.load()
    done = subprocess.run(
        [
            *("docker-buildx", "build", "--progress=plain", "--network=none", "--build-arg=SGLANG_COMMIT=0123456"),
            f"--build-context={lockfile.get(pinned, 'images.sglang')}=docker-image://{image['base']}",
            f"--build-context={lockfile.get(pinned, 'images.cuda-devel')}=docker-image://{image['base']}",
            *("--target=runtime", "--file=docker/Dockerfile", "."),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "kdtree: base image: not so: SGLANG_BUILD_COMMIT begins with 0123456" in done.stderr
