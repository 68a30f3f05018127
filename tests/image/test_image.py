"""The built image: what it says of itself, what it adds to its base, how it runs programs and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pins_reader
from containers import Ran, wait_until
from engine_debs import DebsError, archive

if TYPE_CHECKING:
    import docker

pytestmark = pytest.mark.docker

PYTHON = "/opt/sglang/bin/python"
FREEZE = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()))"
FAKES = Path(__file__).parent / "fakes"


def test_what_it_says_of_itself(client: docker.DockerClient, image: dict[str, Any]) -> None:
    config = client.images.get(image["id"]).attrs["Config"]
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "/opt/kdtree/entrypoint.py"]
    assert config["StopSignal"] == "SIGTERM"
    assert "NVIDIA_DISABLE_REQUIRE=1" in config["Env"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/opt/sglang/bin/kdtree", "health", "--url", "auto"]
    assert config["Healthcheck"]["StartPeriod"] >= 20 * 60 * 10**9
    labels = config["Labels"]
    assert labels["ai.sglang.build.commit"].startswith(pins_reader.get(pins_reader.load(), "sglang.commit"))
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.version"]


def test_the_kernel_hash_on_the_label_is_what_the_library_says(run: Callable[..., Ran], image: dict[str, Any]) -> None:
    told = run("kdtree", "version", "--json")
    assert told.code == 0, told.output
    assert image["labels"]["kdtree.kernel.source-hash"] in told.output
    assert "sm_120a" in told.output
    assert image["labels"]["org.opencontainers.image.version"] in told.output


def test_it_adds_little(image: dict[str, Any]) -> None:
    assert image["added_bytes"] < 15 << 20, json.dumps(image["added"], indent=1)


def test_nothing_of_the_base_changes(run: Callable[..., Ran], image: dict[str, Any]) -> None:
    before = set(run("-c", FREEZE, image=image["base"], entrypoint=PYTHON).output.split())
    after = set(run(PYTHON, "-c", FREEZE).output.split())
    assert before <= after
    assert {line.partition("==")[0] for line in after - before} == {"kdtree-verify", "nvidia-ml-py"}


def test_nothing_of_the_machine_that_built_it_is_in_it(run: Callable[..., Ran]) -> None:
    try:
        mirror, _ = archive()
    except DebsError as error:
        pytest.skip(str(error))
    places = "/etc /root /opt/kdtree /sgl-workspace /var/lib/apt /var/log"
    found = run(
        "bash", "-c", f"grep -rIlF '{mirror}' {places}; ls -A /etc/apt/sources.list.d; find / -xdev -name pip.conf"
    )
    assert found.output == ""


def test_programs_run_as_given(run: Callable[..., Ran]) -> None:
    assert run("bash", "-c", "echo $KDTREE_VERIFY; exit 7", environment={"KDTREE_VERIFY": "x"}).output == "x\n"
    assert run("bash", "-c", "exit 7").code == 7
    assert run("python3", "-c", "import sglang; print(sglang.__file__)").output.startswith("/sgl-workspace/sglang/")
    assert run("kdtree", "--help").code == 0
    missing = run("no-such-program")
    assert missing.code == 127
    assert "no such program" in missing.output


def test_the_process_of_a_program_is_tinis_only_child(run: Callable[..., Ran]) -> None:
    told = run("bash", "-c", "cat /proc/1/comm; echo $PPID; cat /proc/1/task/1/children")
    comm, parent, children = told.output.split("\n")[:3]
    assert (comm, parent, len(children.split())) == ("tini", "1", 1)


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        ([], {}, 64, "no arguments"),
        (["--model-path", "m"], {"KDTREE_VERIFY": "yes"}, 64, "off, validate, on"),
        (["--model-path", "m"], {"KDTREE_DEVICE": "cpu"}, 64, "--device cpu"),
        (["--model-path", "m"], {"KDTREE_VERIFY": "on"}, 69, "--gpus all"),
    ],
)
def test_refusals(
    run: Callable[..., Ran], arguments: list[str], environment: dict[str, str], code: int, words: str
) -> None:
    refused = run(*arguments, environment=environment)
    line = refused.output.splitlines()[-1]
    assert refused.code == code, refused.output
    assert line.startswith("kdtree: ")
    assert words in line
    assert "Fix: " in line


def test_a_wrong_card_is_refused_in_the_image(run: Callable[..., Ran]) -> None:
    card = {"name": "NVIDIA H200", "uuid": "GPU-bbbb", "cc": [9, 0], "mib": 143771}
    refused = run(
        *("--model-path", "m"),
        environment={"KDTREE_VERIFY": "on", "FAKE_NVML": json.dumps({"gpus": [card]}), "PYTHONPATH": "/fakes"},
        volumes={str(FAKES / "pynvml.py"): {"bind": "/fakes/pynvml.py", "mode": "ro"}},
    )
    assert refused.code == 69
    assert "GPU-bbbb" in refused.output.splitlines()[-1]


def test_the_cpu_is_refused_where_a_gpu_is(run: Callable[..., Ran]) -> None:
    refused = run(
        *("--model-path", "m", "--device", "cpu"),
        environment={"KDTREE_DEVICE": "cpu"},
        devices=["/dev/null:/dev/nvidia0:r"],
    )
    assert refused.code == 64
    assert "/dev/nvidia0" in refused.output


def test_health_without_a_server(start: Callable[..., Any]) -> None:
    second = 10**9
    check = {"test": ["CMD", "kdtree", "health"], "interval": second, "start_period": second, "retries": 1}
    container = start("sleep", "60", healthcheck=check)

    def unhealthy() -> bool:
        container.reload()
        return container.attrs["State"]["Health"]["Status"] == "unhealthy"

    wait_until(unhealthy, 30, lambda: str(container.attrs["State"]["Health"]))
    assert "no server has reported" in container.attrs["State"]["Health"]["Log"][-1]["Output"]
