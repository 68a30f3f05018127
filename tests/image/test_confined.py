"""The override that docs/operating/security.md tells to write, brought up by Compose on the stand-in image."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from containers import MODELS, ROOT, wait_until

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.slow]

PAGE = ROOT / "docs" / "operating" / "security.md"
KEY = "a-key-that-nobody-else-has"


@pytest.fixture(scope="module")
def override() -> str:
    """The page's first block of YAML."""
    found = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found
    return found[1]


@pytest.fixture
def compose(
    image: dict[str, Any], models: Path, override: str, tmp_path: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """docker-compose for a project of the test's own, with the override and a key by file; taken down at the end."""
    (tmp_path / "override.yaml").write_text(override)
    (tmp_path / "api-key").write_text(KEY + "\n")
    (tmp_path / "api-key").chmod(0o600)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KDTREE_")} | {
        "KDTREE_VERIFY": "validate",
        "KDTREE_IMAGE": image["tag"],
        "KDTREE_MODELS": str(models),
        "KDTREE_MODEL": f"{MODELS}/tiny",
        "KDTREE_SERVER_ARGS": "--speculative-algorithm NGRAM --sleep-on-idle",
        "KDTREE_LISTEN": "127.0.0.1:0",
        "KDTREE_RESTART": "no",
        "KDTREE_API_KEY_FILE": str(tmp_path / "api-key"),
    }
    files = [ROOT / "compose.yaml", ROOT / "compose.cpu.yaml", tmp_path / "override.yaml"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        options = ["--project-name=kdtree-confined", "--env-file=/dev/null", *(f"--file={file}" for file in files)]
        return subprocess.run(
            ["docker-compose", *options, *arguments], env=environment, capture_output=True, text=True, timeout=300
        )

    yield run
    run("down", "--volumes", "--timeout=20")


def test_it_serves_confined(client: Any, compose: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    up = compose("up", "--detach", "--no-build")
    assert up.returncode == 0, up.stderr
    container = client.containers.get(compose("ps", "--quiet", "server").stdout.strip())

    def healthy() -> bool:
        container.reload()
        assert container.status == "running", container.logs().decode()[-3000:]
        return bool(container.attrs["State"]["Health"]["Status"] == "healthy")

    wait_until(healthy, 240, lambda: container.logs().decode()[-3000:])
    host = container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert not host["Privileged"]

    def inside(*command: str) -> tuple[int, str]:
        code, output = container.exec_run(list(command))
        return code, output.decode()

    assert re.search(r"CapEff:\s+0{16}\n.*NoNewPrivs:\s+1", inside("cat", "/proc/1/status")[1], re.S)
    assert inside("touch", "/opt/kdtree/new")[0] != 0
    assert inside("stat", "-c", "%a %u", "/run/kdtree/server-arguments.yaml") == (0, "600 0\n")
    assert KEY not in json.dumps(container.attrs)
    assert KEY not in inside("cat", "/run/kdtree/server.json")[1]
    log = container.logs().decode()
    assert "'api_key': '***'" in log
    assert KEY not in log
    assert inside("kdtree", "health", "--url", "auto")[0] == 0
