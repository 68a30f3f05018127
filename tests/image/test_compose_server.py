"""compose.yaml as it is, with the CPU overlay and secrets by file: confined, started again by Docker after each kill,
stopped in the middle of a request; and where the key is, and is not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from containers import MODELS, ROOT, Ran, wait_until
from servers import GREEDY, ask, kill_rank, left, process, processes, ranks, url, wait_healthy
from stream import Stream

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.slow]

KEY = "a-key-that-nobody-else-has"
TOKEN = "hf_a-token-that-nobody-else-has"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder with the key and the token, as docs/operating/security.md tells root to make them."""
    for name, text in (("api-key", KEY), ("hf-token", TOKEN)):
        (tmp_path / name).write_text(text + "\n")
        (tmp_path / name).chmod(0o640)
    return tmp_path


@pytest.fixture
def compose(image: dict[str, Any], models: Path, secrets: Path) -> Iterator[Callable[..., str]]:
    """docker-compose for a project of the test's own, taken down at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KDTREE_", "HF_"))} | {
        "KDTREE_VERIFY": "validate",
        "KDTREE_IMAGE": image["tag"],
        "KDTREE_MODELS": str(models),
        "KDTREE_MODEL": f"{MODELS}/tiny",
        "KDTREE_SERVER_ARGS": "--speculative-algorithm NGRAM --sleep-on-idle",
        "KDTREE_LISTEN": "127.0.0.1:0",
        "KDTREE_API_KEY_FILE": str(secrets / "api-key"),
        "KDTREE_HF_TOKEN_FILE": str(secrets / "hf-token"),
    }
    files = [f"--file={ROOT / name}" for name in ("compose.yaml", "compose.cpu.yaml")]

    def run(*arguments: str) -> str:
        command = ["docker-compose", "--project-name=kdtree-test", "--env-file=/dev/null", *files, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    run("down", "--volumes", "--timeout=20")


def test_from_its_start_over_two_kills_to_its_stop(client: Any, compose: Callable[..., str]) -> None:
    compose("up", "--detach", "--no-build")
    container = client.containers.get(compose("ps", "--quiet", "server").strip())
    wait_healthy(container)

    def inside(*command: str) -> str:
        code, output = container.exec_run(list(command))
        assert code == 0, output
        return output.decode()

    # Confined.
    host = container.attrs["HostConfig"]
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["Privileged"]) == (True, ["ALL"], False)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert re.search(r"CapEff:\s+0{16}\n.*NoNewPrivs:\s+1", inside("cat", "/proc/1/status"), re.S)
    assert inside("id", "-u") + inside("id", "-g") == "1000\n0\n"
    assert container.exec_run(["touch", "/opt/kdtree/new"])[0] != 0

    # The key is asked for, and nowhere to be read but in the two files that hold it.
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(container, "/generate", GREEDY)
    assert ask(container, "/generate", GREEDY, KEY)["text"]
    wait_until(
        lambda: any(layer["calls"] for layer in ranks(container)[0]["layers"]),
        90,
        lambda: container.exec_run(["kdtree", "status"]).output.decode(),
    )
    (handed,) = inside("sh", "-c", "ls /run/kdtree/server-arguments-*.yaml").splitlines()
    assert inside("stat", "-c", "%a %u", handed) == "600 1000\n"
    told = json.dumps(container.attrs) + inside("kdtree", "status") + inside("kdtree", "status", "--json")
    for pid in processes(container):
        told += "".join(Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ"))
    for form in ("--json", "--html=/tmp/report.html"):
        code, report = container.exec_run(["kdtree", "report", form])
        assert (code, b"not yet" in report or b"not_yet" in report) == (2, True), report
        told += report.decode()
    log = container.logs().decode()
    told += log
    assert "'api_key': '***'" in log
    assert [secret for secret in (KEY, TOKEN) if secret in told] == []
    searched = ("/run/kdtree", "/var/lib/kdtree", "/root/.cache/sglang", "/tmp")
    _, found = container.exec_run(["grep", "-rlsE", f"{KEY}|{TOKEN}", *searched])
    assert found.decode() == f"{handed}\n"

    # What the log says of the start, by the entrypoint's clock; the commit is the image's own word.
    assert re.search(
        r"kdtree: versions: kdtree_verify .*, sglang \S+ \(commit \w+\), .*library libkdtree_verify_host", log
    )
    assert re.search(r"kdtree: \[\d+:\d\d\] dp0-pp0-tp0: loading weights, ", log)
    assert re.search(r"kdtree: \[\d+:\d\d\] ready after \d+:\d\d: HTTP answers, 1 rank, mode validate", log)

    # A rank, then the server's first process: Docker starts it again, and nothing of before hinders it.
    before = processes(container)
    kill_rank(container)
    wait_healthy(container, restarts=1)
    assert left(before) == []
    assert container.attrs["State"]["ExitCode"] == 0
    assert ask(container, "/generate", GREEDY, KEY)["text"]
    os.kill(process(container, "kdtree_verify.launch"), signal.SIGKILL)
    wait_healthy(container, restarts=2)
    assert [rank["mode"] for rank in ranks(container)] == ["validate"]

    # SIGTERM, with a request under way.
    before, stream = processes(container), Stream(url(container), 64, KEY)
    compose("stop")
    assert stream.answered(5) == 64
    container.reload()
    assert (container.status, container.attrs["State"]["ExitCode"]) == ("exited", 0)
    assert left(before) == []


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("KDTREE_API_KEY_FILE", "the API key's file cannot be read"),
        ("HF_TOKEN_PATH", "the Hugging Face token's file cannot be read"),
    ],
)
def test_a_secret_that_the_user_may_not_read(
    run: Callable[..., Ran], secrets: Path, models: Path, variable: str, words: str
) -> None:
    (secrets / "api-key").chmod(0o600)
    refused = run(
        *("--model-path", f"{MODELS}/tiny", "--device", "cpu"),
        environment={"KDTREE_DEVICE": "cpu", variable: "/run/secrets/it"},
        volumes={
            str(secrets / "api-key"): {"bind": "/run/secrets/it", "mode": "ro"},
            str(models): {"bind": MODELS, "mode": "ro"},
        },
    )
    (line,) = [line for line in refused.output.splitlines() if "Fix: " in line and "warning" not in line]
    assert refused.code == 64
    assert line.startswith(
        f"kdtree: {words}: /run/secrets/it: Permission denied. Fix: let user 1000 or group 0 read it"
    )
