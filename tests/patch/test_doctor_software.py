"""The doctor's checks of what is installed: real mixed installs, a Python without SGLang, defective libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdtree_verify.config import Device
from kdtree_verify.doctor import software
from kdtree_verify.errors import SelftestFailed

SOURCES = Path(__file__).parents[2] / "patch" / "src"


def asked(*python: str, path: str = "", **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The doctor's code, and its last finding on each check, for a server on the CPU."""
    given = {**os.environ, "PYTHONPATH": f"{path}:{SOURCES}", "KDTREE_DEVICE": "cpu", **env}
    command = [sys.executable, *python, "-m", "kdtree_verify.cli", "doctor", "--json"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120)
    document = json.loads(done.stdout)
    assert document["code"] == done.returncode
    return done.returncode, {each["check"]: each for each in document["checks"]}


def test_all_is_well() -> None:
    code, found = asked()
    assert code == 0
    assert {found[check]["status"] for check in ("versions", "contract", "library", "selftest")} == {"ok"}
    for name in ("kdtree-verify ", "sglang ", "torch "):
        assert name in found["versions"]["text"]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_driver_the_way_out_is_told_in_a_container_and_without() -> None:
    code, found = asked(KDTREE_DEVICE="")
    assert (code, found["nvml"]["code"]) == (69, 69)
    assert "--gpus all" in found["nvml"]["fix"]
    assert "without a container, load the driver" in found["nvml"]["fix"]


def test_two_versions_of_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "kdtree_verify-9.9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: kdtree-verify\nVersion: 9.9.9\n")
    code, found = asked(path=str(tmp_path))
    assert code == 70
    assert found["versions"]["text"].startswith("two versions of this package are mixed: the wheel is 9.9.9")


def test_a_python_without_sglang() -> None:
    code, found = asked("-S")
    assert found["versions"]["status"] == "warning"
    assert "sglang, torch" in found["versions"]["text"]
    assert (code, found["contract"]["status"], found["contract"]["code"]) == (78, "failed", 78)
    assert found["library"]["status"] == "ok"


def test_a_plugin_that_sglang_would_leave_out() -> None:
    code, found = asked(SGLANG_PLUGINS="other")
    assert code == 78
    assert "SGLANG_PLUGINS='other'" in found["contract"]["text"]


def test_a_library_that_computes_wrongly(defective_dir: Path) -> None:
    code, found = asked(KDTREE_LIBRARY_DIR=str(defective_dir), KDTREE_DEFECT="head-stride")
    assert code == 76
    assert found["library"]["status"] == "ok"
    assert "failed its self-test on cpu" in found["selftest"]["text"]
    assert found["selftest"]["fix"]


def test_a_self_test_that_does_not_end() -> None:
    with pytest.raises(SelftestFailed, match=r"did not finish: no end within 0\.1 s"):
        software.check_selftest(Device.CPU, limit=0.1)
