"""What docker/Dockerfile repeats is what its source says."""

from __future__ import annotations

import re
from pathlib import Path

from kdtree_verify.doctor import nvml
from pinning import lockfile

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def default(name: str) -> str:
    """The default of a build argument."""
    found = re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.M)
    assert found, name
    return found[1]


def test_the_commit_is_the_pinned_one() -> None:
    assert default("SGLANG_COMMIT") == lockfile.get(lockfile.load(), "sglang.commit")


def test_the_version_is_the_header_s() -> None:
    header = (ROOT / "kernel" / "include" / "kdtree_verify.h").read_text()
    assert f'#define KDTREE_VERSION "{default("KDTREE_VERSION")}"' in header


def test_the_driver_s_floor_is_the_pinned_one() -> None:
    assert int(lockfile.get(lockfile.load(), "cuda.minimum-driver").split(".")[0]) == nvml.DRIVER_FLOOR


def test_no_registry_is_asked_for_a_frontend() -> None:
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, re.M | re.I)


def test_a_build_without_a_target_makes_the_runtime_and_not_the_tests() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2].splitlines()
    assert last == ["runtime"]
    copied = re.findall(r"^COPY --from=checkout .*$|--mount=type=bind,from=checkout", DOCKERFILE, re.M)
    (stage,) = re.findall(r"^FROM runtime AS test$.*?(?=^FROM )", DOCKERFILE, re.M | re.S)
    assert len(copied) == 2
    assert all(step in stage for step in copied)
