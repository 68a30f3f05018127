"""One SGLang, asked about command lines by a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Probe:
    """One SGLang, and KDTree's launcher with it, to be asked about command lines (sglang_probe.py).

    Attributes:
        options: Every option of this SGLang.
    """

    def __init__(self, version: str, path: str):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / "sglang_probe.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
        )
        told = self._line()
        assert told["version"] == version
        self.options: list[str] = told["options"]

    def ask(self, commands: list[list[str]]) -> list[dict[str, Any]]:
        """What this SGLang's parser and the launcher make of each argument list."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(commands) + "\n")
        self._process.stdin.flush()
        return self._line()

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the probe ended with {self._process.wait(60)}"
        return json.loads(line)
