"""The built image: what it says of itself, what it adds to its base, how it runs programs and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from containers import Ran, wait_until
from fake_driver import FAKES, H200, RTX, device, libcuda, several
from pinning import lockfile

if TYPE_CHECKING:
    import docker

pytestmark = pytest.mark.docker

PYTHON = "/opt/sglang/bin/python"
FREEZE = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()))"


def test_what_it_says_of_itself(client: docker.DockerClient, image: dict[str, Any]) -> None:
    config = client.images.get(image["id"]).attrs["Config"]
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "/opt/kdtree/entrypoint.py"]
    assert config["StopSignal"] == "SIGTERM"
    assert "NVIDIA_DISABLE_REQUIRE=1" in config["Env"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/opt/sglang/bin/kdtree", "health", "--url", "auto"]
    assert config["Healthcheck"]["StartPeriod"] >= 20 * 60 * 10**9
    labels = config["Labels"]
    assert labels["ai.sglang.build.commit"].startswith(lockfile.get(lockfile.load(), "sglang.commit"))
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.version"]


def test_the_kernel_hash_on_the_label_is_what_the_library_says(run: Callable[..., Ran], image: dict[str, Any]) -> None:
    told = run("kdtree", "version", "--json")
    assert told.code == 0, told.output
    assert image["labels"]["kdtree.kernel.source-hash"] in told.stdout
    assert "sm_120a" in told.stdout
    assert image["labels"]["org.opencontainers.image.version"] in told.stdout


def test_nothing_of_the_base_changes(run: Callable[..., Ran], image: dict[str, Any]) -> None:
    before = set(run("-c", FREEZE, image=image["base"], entrypoint=PYTHON).output.split())
    after = set(run(PYTHON, "-c", FREEZE).output.split())
    assert before <= after
    assert {line.partition("==")[0] for line in after - before} == {"kdtree-verify", "nvidia-ml-py"}


# The module that the stand-in brings compiled, as a base its own; what is appended to; and each place for new things.
CACHES = """
import getpass, os, pathlib, sys
from sglang.kernels.ops.speculative.ngram_corpus import get_ngram_corpus_cls
home = pathlib.Path.home()
found = lambda: {path for path in (home / '.cache/sglang/jit').rglob('*.so')}
before = found()
get_ngram_corpus_cls()
assert found() == before and len(before) == 1, found() - before
next((home / '.cache/sglang/.cache/flashinfer').glob('*/flashinfer_jit.log')).open('a').write('appended')
for folder in ('sglang/triton/new', 'sglang/jit/new', 'huggingface/hub', 'tvm-ffi'):
    (home / '.cache' / folder).mkdir(parents=True, exist_ok=True)
    (home / '.cache' / folder / f'{os.getuid()}').write_text('new')
(pathlib.Path('/var/lib/kdtree') / f'{os.getuid()}').write_text('new')
print(getpass.getuser(), home)
"""


@pytest.fixture
def volume(client: docker.DockerClient) -> Iterator[str]:
    made = client.volumes.create()
    yield made.name
    client.api.remove_volume(made.name, force=True)


def test_any_user_uses_the_base_s_caches_and_adds_to_them(volume: str, run: Callable[..., Ran]) -> None:
    """In the image's own folders; and in a volume that starts as they are and goes from user to user of group 0."""
    program = ("bash", "-c", f'umask 002; {PYTHON} -W ignore -c "$PROGRAM"')
    options = {"environment": {"PROGRAM": CACHES}, "cap_drop": ["ALL"]}
    kept = {
        "read_only": True,
        "tmpfs": {"/tmp": "", "/var/lib/kdtree": ""},
        "volumes": {volume: {"bind": "/root/.cache", "mode": "rw"}},
    }
    for how in ({}, {"user": "12345:12345"}, kept, kept | {"user": "12345:0"}, kept | {"user": "0:0"}):
        done = run(*program, **options, **how)
        assert done.output.splitlines()[-1:] == ["kdtree /root"], (how, done.output)


def test_what_is_another_user_s_is_refused_in_a_line(run: Callable[..., Ran], tmp_path: Path) -> None:
    """A volume that root filled, and a model of root's alone."""
    (tmp_path / "caches" / "sglang").mkdir(parents=True)
    (tmp_path / "model").mkdir(mode=0o700)
    server = ("--model-path", "/model", "--device", "cpu")
    options = {"environment": {"KDTREE_DEVICE": "cpu", "KDTREE_VERIFY": "on"}}
    model = {str(tmp_path / "model"): {"bind": "/model", "mode": "ro"}}
    caches = {str(tmp_path / "caches"): {"bind": "/root/.cache", "mode": "rw"}}
    refused = run(*server, volumes=model | caches, **options)
    assert refused.code == 77
    assert refused.output.splitlines()[-1].startswith(
        "kdtree: the model cannot be read: /model: Permission denied. Fix: "
    )
    (tmp_path / "model").chmod(0o755)
    refused = run(*server, volumes=model | caches, **options)
    assert refused.code == 77
    assert (
        "/root/.cache/sglang is 0:0's, mode 755; this is user 1000:0. Fix: as root: chown -R 1000:0 "
        in (refused.output.splitlines()[-1])
    )


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
    refused = run(
        *("--model-path", "m"),
        environment={"KDTREE_VERIFY": "on", "FAKE_NVML": json.dumps({"gpus": [H200]}), "PYTHONPATH": "/fakes"},
        volumes={str(FAKES / "pynvml.py"): {"bind": "/fakes/pynvml.py", "mode": "ro"}},
    )
    assert refused.code == 66
    assert H200["uuid"] in refused.output.splitlines()[-1]


@pytest.fixture
def driven() -> dict[str, Any]:
    """Options of a container whose driver is a fake with two product cards."""
    cards = several(RTX, 2)
    environment = {
        "FAKE_NVML": json.dumps({"gpus": cards}),
        "FAKE_CUDA": ";".join(map(device, cards)),
        "PYTHONPATH": "/fakes",
        "LD_LIBRARY_PATH": "/driver",
        "KDTREE_VERIFY": "on",
    }
    volumes = {
        str(FAKES / "pynvml.py"): {"bind": "/fakes/pynvml.py", "mode": "ro"},
        str(libcuda()): {"bind": "/driver", "mode": "ro"},
    }
    return {"environment": environment, "volumes": volumes}


def test_docker_s_own_shared_memory_is_too_small_for_two_ranks(run: Callable[..., Ran], driven: dict[str, Any]) -> None:
    refused = run("--model-path", "m", "--tp-size", "2", **driven)
    assert refused.code == 72, refused.output
    assert "needs 98 MiB: 64 MiB free of 64 MiB. Fix: " in refused.output.splitlines()[-1]
    assert f"cuda:1 is {RTX['name']}" in refused.output


@pytest.mark.parametrize(
    ("size", "ranks", "expected"),
    [("64m", 1, "ok"), ("128m", 2, "warning"), ("128m", 4, "failed"), ("512m", 8, "warning"), ("2g", 8, "ok")],
)
def test_shared_memory_against_ranks(
    run: Callable[..., Ran], driven: dict[str, Any], size: str, ranks: int, expected: str
) -> None:
    told = run("kdtree", "doctor", "--", "--model-path", "m", "--tp-size", str(ranks), shm_size=size, **driven)
    (line,) = [line for line in told.stdout.splitlines() if line.split()[1:2] == ["shm"]]
    assert line.split()[0] == expected


def test_locked_memory(run: Callable[..., Ran], driven: dict[str, Any]) -> None:
    # Lowering a limit takes no capability.
    options = driven | {"ulimits": [{"Name": "memlock", "Soft": 65536, "Hard": 65536}]}
    infiniband = {"devices": ["/dev/null:/dev/infiniband/uverbs0:r"], "shm_size": "2g"}
    server = ("--model-path", "m", "--tp-size", "2")
    told = run("kdtree", "doctor", "--", *server, **options)
    assert "warning  memlock   memlock is limited, which NVIDIA advises against for NCCL: 64 KiB" in told.stdout
    refused = run(*server, "--nnodes", "2", **options, **infiniband)
    assert refused.code == 75, refused.output
    assert refused.output.splitlines()[-1].endswith(
        "Fix: " + "run with --ulimit memlock=-1 (compose.yaml does; systemd: LimitMEMLOCK=infinity)"
    )


def test_the_doctor_in_the_image(run: Callable[..., Ran], driven: dict[str, Any]) -> None:
    # Read-only and without a capability; of its children torch alone wants a place to write.
    options = {"read_only": True, "cap_drop": ["ALL"], "tmpfs": {"/tmp": ""}, "shm_size": "2g"}
    told = run("kdtree", "doctor", "--json", **options, **driven)
    document = json.loads(told.stdout)
    by_check = {each["check"]: each for each in document["checks"]}
    for check in ("nvml", "driver", "gpus", "cuda", "shm", "versions", "contract", "library"):
        assert by_check[check]["status"] == "ok", by_check[check]
    assert told.code == document["code"] == 69  # the self-test: torch sees that the driver is none
    assert "no CUDA device" in by_check["selftest"]["text"]


def test_the_entrypoint_s_checks_are_quick(run: Callable[..., Ran], driven: dict[str, Any]) -> None:
    script = (
        "import subprocess, time; began = time.monotonic();"
        "subprocess.run(['/opt/kdtree/entrypoint.py', '--model-path', 'm', '--tp-size', '2']);"
        "print('seconds', time.monotonic() - began)"
    )
    told = run("python3", "-c", script, **driven)
    assert "too small for 2 ranks" in told.output
    assert float(told.stdout.rpartition("seconds ")[2]) < 2.0


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
