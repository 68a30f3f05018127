"""ci/pins and ci/mirror while a registry lets them wait: a signal ends them with a line; the lock is what it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "ci" / "pins.toml"


@pytest.mark.parametrize("command", [["pins", "update"], ["pins", "verify", "--write"], ["mirror", "127.0.0.1:1/x"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal(command: list[str], number: signal.Signals) -> None:
    before = LOCK.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as registry:
        environment = os.environ | {"KDTREE_MIRROR": f"127.0.0.1:{registry.getsockname()[1]}"}
        program, *arguments = command
        process = subprocess.Popen(
            [ROOT / "ci" / program, *arguments], env=environment, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        connection, _ = registry.accept()
        with connection:
            connection.recv(1)  # it has asked, and waits
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
    if number == signal.SIGKILL:
        assert (process.returncode, said) == (-number, "")
    else:
        assert process.returncode == 130
        assert said.startswith("kdtree: interrupted: ")
        assert said.count("\n") == 1
    assert LOCK.read_bytes() == before
