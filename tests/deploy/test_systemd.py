"""The systemd unit: systemd takes it as it is, and it says of the server what the product does."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kdtree_verify.config import from_environment
from kdtree_verify.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "kdtree-server.service"
SETTINGS = ROOT / "deploy" / "kdtree-server.env"


class Unit(configparser.RawConfigParser):
    def __init__(self) -> None:
        super().__init__(strict=False, comment_prefixes=("#",), delimiters=("=",), interpolation=None)
        self.read(UNIT)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def settings() -> dict[str, str]:
    lines = [line for line in SETTINGS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with the unit in place, and what it starts."""
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    shutil.copy(UNIT, units)
    for program in ("opt/sglang/bin/python", "usr/bin/nvidia-modprobe"):
        (tmp_path / program).parent.mkdir(parents=True)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    # What every installation has and the unit refers to.
    for name in ("basic", "multi-user", "network-online", "shutdown", "sysinit"):
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    return tmp_path


def verify(root: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", f"--root={root}", UNIT.name]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_takes_it(root: Path) -> None:
    done = verify(root)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_would_not_take_a_misspelt_one(root: Path) -> None:
    unit = root / "etc" / "systemd" / "system" / UNIT.name
    unit.write_text(unit.read_text().replace("RestartSec=30", "RestartSeconds=30"))
    assert "Unknown key 'RestartSeconds'" in verify(root).stderr.replace("key name", "key")


def test_its_exposure_is_low(root: Path) -> None:
    """Of 100, where 0 is best; what is left is said in the unit."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = [
        "systemd-analyze",
        "security",
        "--offline=yes",
        "--no-pager",
        "--threshold=40",
        f"--root={root}",
        UNIT.name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_secrets_are_credentials() -> None:
    service = UNIT.read_text()
    assert "\nLoadCredential=api-key:/etc/kdtree/api-key\nEnvironment=KDTREE_API_KEY_FILE=%d/api-key\n" in service
    assert not {name for name in settings() if "KEY" in name or "TOKEN" in name}


def test_refusals_are_not_tried_again() -> None:
    listed = {int(code) for code in Unit()["Service"]["RestartPreventExitStatus"].split()}
    # The smaller ones are what the commands say of a server; of a server itself 2 is SGLang's, for its arguments.
    assert listed == {2} | {code for code in ExitCode if code >= ExitCode.USAGE}


def test_the_settings_are_all_that_the_unit_asks_for_and_begin_with_stock() -> None:
    command = Unit()["Service"]["ExecStart"]
    assert {name for name in settings() if f"${name}" in command or f"${{{name}}}" in command} == {
        "SGLANG_MODEL",
        "SGLANG_ARGS",
    }
    assert settings().keys() - {"SGLANG_MODEL", "SGLANG_ARGS"} == {
        "KDTREE_VERIFY",
        "KDTREE_SAMPLE",
        "KDTREE_CAPTURES",
    }
    assert from_environment(settings()) == from_environment({})
    assert settings()["KDTREE_VERIFY"] == "off"


def test_sglang_takes_the_arguments() -> None:
    import argparse

    from sglang.srt.server_args import ServerArgs

    command = Unit()["Service"]["ExecStart"].replace("${SGLANG_MODEL}", settings()["SGLANG_MODEL"])
    words = shlex.split(command.replace("$SGLANG_ARGS", settings()["SGLANG_ARGS"]))
    assert words[:2] == ["/opt/sglang/bin/python", "/opt/kdtree/entrypoint.py"]
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert parser.parse_args(words[2:]).attention_backend == "triton"


def test_the_rollback_is_one_line(tmp_path: Path) -> None:
    (rollback,) = (line for line in UNIT.read_text().splitlines() if line.startswith("#   sed "))
    copy = tmp_path / "server.env"
    copy.write_text(SETTINGS.read_text().replace("KDTREE_VERIFY=off", "KDTREE_VERIFY=on"))
    command = rollback.removeprefix("#   ").split(" && ")[0].replace("/etc/kdtree/server.env", str(copy))
    subprocess.run(shlex.split(command), check=True)
    assert copy.read_text() == SETTINGS.read_text()
