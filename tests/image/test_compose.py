"""compose.yaml and its CPU overlay as Compose reads them; no engine is asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_clients import compose
from engine_private import EngineError

ROOT = Path(__file__).resolve().parents[2]
FILES = ["compose.yaml", "compose.cpu.yaml"]


def config(*files: str, **variables: str) -> dict[str, Any]:
    """The whole project as Compose resolves it, from these variables alone."""
    try:
        binary = compose(ROOT / "build")
    except EngineError as error:
        pytest.skip(str(error))
    environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:9", "KDTREE_MODEL": "m", **variables}
    command = [binary, "--env-file=/dev/null", *(f"--file={ROOT / name}" for name in files), "config", "--format=json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def server(*files: str, **variables: str) -> dict[str, Any]:
    return config(*files, **variables)["services"]["server"]


def test_every_gpu_is_asked_for() -> None:
    (device,) = server("compose.yaml")["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == -1
    assert device["capabilities"] == ["gpu"]
    assert device["driver"] == "nvidia"


def test_by_cdi_every_gpu_is_asked_for_and_nothing_of_nvidias_runtime() -> None:
    found = server("compose.yaml", "compose.cdi.yaml")
    assert "deploy" not in found
    (device,) = found["devices"]
    assert device["source"] == "nvidia.com/gpu=all"


def test_defaults() -> None:
    found = server("compose.yaml")
    assert found["environment"]["KDTREE_VERIFY"] == "off"
    (port,) = found["ports"]
    assert (port["host_ip"], port["target"]) == ("127.0.0.1", 30000)
    assert found["init"] is False
    assert (found["user"], found["read_only"], found["cap_drop"]) == ("1000:0", True, ["ALL"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found.keys().isdisjoint({"privileged", "ipc", "network_mode", "pid"})
    assert found["ulimits"]["memlock"] == -1
    assert {volume["target"] for volume in found["volumes"] if volume["type"] == "volume"} == {
        "/root/.cache/huggingface",
        "/root/.cache",
        "/var/lib/kdtree",
    }


def test_settings_reach_the_server() -> None:
    found = server(
        "compose.yaml",
        KDTREE_VERIFY="validate",
        KDTREE_SERVER_ARGS="--tp-size 2 --chat-template 'a b'",
        KDTREE_LISTEN="0.0.0.0:8000",
        KDTREE_MODELS="/srv/models",
    )
    assert found["environment"]["KDTREE_VERIFY"] == "validate"
    assert found["command"][-4:] == ["--tp-size", "2", "--chat-template", "a b"]
    assert found["ports"][0]["published"] == "8000"
    assert ("/srv/models", "bind") in {(volume["source"], volume["type"]) for volume in found["volumes"]}


def test_the_api_key_is_a_file() -> None:
    found = config("compose.yaml", KDTREE_API_KEY_FILE="/srv/key")
    assert found["secrets"]["api-key"]["file"] == "/srv/key"
    assert found["services"]["server"]["environment"]["KDTREE_API_KEY_FILE"] == "/run/secrets/api-key"


def test_the_token_is_a_file() -> None:
    found = config("compose.yaml", KDTREE_HF_TOKEN_FILE="/srv/token")
    assert found["secrets"]["hf-token"]["file"] == "/srv/token"
    assert found["services"]["server"]["environment"]["HF_TOKEN_PATH"] == "/run/secrets/hf-token"


def test_its_confinement_can_be_loosened() -> None:
    found = server("compose.yaml", KDTREE_USER="0:0", KDTREE_READ_ONLY="false")
    assert (found["user"], found.get("read_only", False)) == ("0:0", False)


def test_a_model_is_required() -> None:
    with pytest.raises(AssertionError, match="name a model"):
        config("compose.yaml", KDTREE_MODEL="")


def test_the_overlay_changes_only_what_a_machine_without_gpu_must() -> None:
    plain, overlaid = config("compose.yaml"), config(*FILES)
    services = [project.pop("services")["server"] for project in (plain, overlaid)]
    assert plain == overlaid
    gpu, cpu = services
    changed = {key for key in gpu.keys() | cpu.keys() if gpu.get(key) != cpu.get(key)}
    assert changed == {"command", "deploy", "environment", "image", "ulimits"}
    assert cpu["environment"] == gpu["environment"] | {"KDTREE_DEVICE": "cpu", "TRITON_INTERPRET": "1"}
    assert cpu["command"][: len(gpu["command"])] == gpu["command"]
    assert "deploy" not in cpu
    assert "ulimits" not in cpu


def test_the_example_explains_every_variable() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "compose.yaml").read_text()))
    explained = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    assert used == explained


def test_the_example_shows_the_defaults() -> None:
    text = (ROOT / "compose.yaml").read_text()
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    for name, shown in re.findall(r"^#([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.M):
        if name not in ("KDTREE_SERVER_ARGS", "KDTREE_API_KEY_FILE", "KDTREE_HF_TOKEN_FILE"):
            assert shown == defaults[name], name
