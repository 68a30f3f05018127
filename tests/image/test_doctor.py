"""`kdtree doctor` and the entrypoint's half of it, as processes: each fault of the driver, by injected error codes.

NVML and CUDA are fakes (fake_driver.py); models, /dev/shm, the child processes and their limits are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_driver import FAKES, H200, RTX, device, environment, is_alive, libcuda, several
from kdtree_verify.doctor import cuda, gpus
from kdtree_verify.doctor.arguments import Plan
from kdtree_verify.doctor.model import Weights
from kdtree_verify.doctor.nvml import Survey
from kdtree_verify.errors import CudaError, GpuMemoryError

ROOT = Path(__file__).resolve().parents[2]
USAGE, DRIVER, OTHER_CARD, DEVICE, CUDA, GPU_MEMORY, PEERS = 64, 65, 66, 69, 71, 73, 74
LIBRARIES = os.environ["KDTREE_LIBRARY_DIR"]
GIB = 1 << 30


def doctor(*arguments: str, nvml: dict[str, Any] | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The doctor on a machine with one product GPU unless told otherwise; and without a library, so no self-test."""
    given = environment({"gpus": [RTX]} if nvml is None else nvml, **{"KDTREE_LIBRARY_DIR": "/nowhere", **env})
    # The fake of NVML's module, and the real package: not the fake launcher beside it.
    given["PYTHONPATH"] = f"{ROOT / 'patch' / 'src'}:{FAKES}"
    command = [sys.executable, "-m", "kdtree_verify.cli", "doctor", *arguments]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=120)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    """What `--json` told, by check; the document is held against the exit code and stderr."""
    document = json.loads(done.stdout)
    told: dict[str, list[dict[str, Any]]] = {}
    for each in document["checks"]:
        told.setdefault(each["check"], []).append(each)
        assert (each["fix"] is not None) == (each["status"] in ("warning", "failed")), each
        assert (each["code"] != 0) == (each["status"] == "failed"), each
    first = next((each for each in document["checks"] if each["status"] == "failed"), None)
    assert document["code"] == done.returncode == (first["code"] if first else 0), done.stderr
    assert document["passed"] == (first is None)
    assert done.stderr == (f"kdtree: {first['text']}. Fix: {first['fix']}\n" if first else "")
    return told


def status(told: dict[str, list[dict[str, Any]]], check: str) -> str:
    """The worst status of a check."""
    return max((each["status"] for each in told[check]), key=["skipped", "ok", "warning", "failed"].index)


def asked(*arguments: str, **options: Any) -> dict[str, list[dict[str, Any]]]:
    return findings(doctor("--json", *arguments, **options))


def test_a_machine_that_is_well_up_to_the_kernel_s_own_proof() -> None:
    # The self-test has no GPU here: torch says so, and what it says is handed on.
    told = asked("--", "--model-path", "m", "--tp-size", "1", KDTREE_LIBRARY_DIR=LIBRARIES)
    assert list(told) == [
        *("device", "nvml", "driver", "gpus", "cards", "model", "caches", "cuda", "ranks", "memory", "shm", "memlock"),
        *("versions", "contract", "library", "selftest", "p2p"),
    ]
    for check in (
        "device",
        "nvml",
        "driver",
        "gpus",
        "cards",
        "model",
        "caches",
        "cuda",
        "ranks",
        "shm",
        "versions",
        "contract",
    ):
        assert status(told, check) == "ok", told[check]
    if (Path(LIBRARIES) / "libkdtree_verify_cuda.so").exists():
        assert "no CUDA device" in told["selftest"][0]["text"]
    assert status(told, "memory") == "warning"
    assert told["cuda"][0]["text"].startswith(f"cuda:0 is {RTX['name']}, {RTX['uuid']}")
    assert told["p2p"][0]["text"] == "not asked for: --p2p"


def test_it_goes_on_after_a_failure_and_ends_with_the_first_s_code() -> None:
    done = doctor(nvml={"gpus": [RTX | {"error": 15}]})
    assert done.returncode == DEVICE
    assert "failed   nvml      a GPU does not answer: NVML: GPU is lost\n                   Fix: " in done.stdout
    assert "skipped  cuda      nvml failed" in done.stdout
    assert "failed   library   the kernel library is missing: /nowhere" in done.stdout
    assert "ok       contract  " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("KDTREE_VERIFY=on would not start: ")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kdtree: a GPU does not answer: NVML: GPU is lost. Fix: ")


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        ({"init": 12}, "NVIDIA_VISIBLE_DEVICES is not set. Fix: run with --gpus all"),
        ({"init": 9}, "load the NVIDIA driver"),
        ({"init": 18}, "driver was updated"),
        ({"init": 4}, "/dev/nvidia"),
        ({"init": 15}, "reset the GPU"),
        ({"init": 999}, "NVML: Unknown Error"),
        ({"gpus": []}, "NVML lists none"),
        ({"gpus": [RTX | {"error": 15}]}, "GPU is lost"),
        ({"gpus": [RTX | {"error": 16}]}, "reset the GPU"),
        ({"gpus": [RTX | {"fault": {"nvmlDeviceGetMemoryInfo": 15}}]}, "GPU is lost"),
    ],
)
def test_faults_of_nvml(nvml: dict[str, Any], words: str) -> None:
    refused(nvml, words, DEVICE)


@pytest.mark.parametrize(
    ("nvml", "words", "code"),
    [
        ({"gpus": [RTX], "driver": "575.57.08"}, "575.57.08", DRIVER),
        ({"gpus": [RTX], "driver": ""}, "the driver's version is unknown", DRIVER),
        ({"gpus": [H200]}, "needs compute capability 12.0", OTHER_CARD),
        ({"gpus": [RTX, H200]}, H200["uuid"], OTHER_CARD),
    ],
)
def test_a_driver_and_cards_of_another_kind(nvml: dict[str, Any], words: str, code: int) -> None:
    refused(nvml, words, code)


def refused(nvml: dict[str, Any], words: str, code: int) -> None:
    done = doctor("--json", nvml=nvml)
    findings(done)
    assert done.returncode == code
    assert words in done.stderr


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"FAKE_CUDA_FAIL": "cuInit=999"}, "cuInit: CUDA_ERROR_999 (999). Fix: load nvidia-uvm"),
        ({"FAKE_CUDA_FAIL": "cuInit=802"}, "fabric manager"),
        ({"FAKE_CUDA_FAIL": "cuInit=803"}, "restart the host after the driver's update"),
        ({"FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain=46"}, "exclusive mode"),
        ({"FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain=2"}, "end what uses the GPU's memory"),
        ({"FAKE_CUDA_FAIL": "cuMemcpyDtoH_v2=719"}, "restart the host"),
        ({"FAKE_CUDA_CRASH": "cuInit"}, "killed by SIGABRT, at: cuInit"),
        ({"FAKE_CUDA_DAMAGE": "1"}, "does not keep what is written"),
        ({"FAKE_CUDA_VERSION": "12090"}, "libcuda runs CUDA 12.9"),
        ({"LD_LIBRARY_PATH": ""}, "libcuda.so.1"),
    ],
)
def test_cuda_that_does_not_start(fault: dict[str, str], words: str) -> None:
    done = doctor("--json", **fault)
    assert status(findings(done), "cuda") == "failed"
    assert done.returncode == CUDA
    assert words in done.stderr


@pytest.mark.parametrize("function", ["cuInit", "cuDevicePrimaryCtxRetain", "cuMemcpyDtoH_v2"])
def test_cuda_that_hangs_is_given_up(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LD_LIBRARY_PATH": str(libcuda()),
        "FAKE_CUDA": device(RTX),
        "FAKE_CUDA_HANG": function,
    }.items():
        monkeypatch.setenv(name, value)
    reached = {"cuInit": "cuInit", "cuDevicePrimaryCtxRetain": "its context", "cuMemcpyDtoH_v2": "read back"}[function]
    began = time.monotonic()
    with pytest.raises(CudaError, match=f"no end within 2 s, at: .*{reached}"):
        cuda.start(Survey("580", (), ()), limit=2.0)
    assert time.monotonic() - began < 8.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_child(number: int) -> None:
    command = [sys.executable, "-m", "kdtree_verify.cli", "doctor"]
    env = environment({"gpus": [RTX]}, FAKE_CUDA_HANG="cuInit", PYTHONPATH=f"{ROOT / 'patch' / 'src'}:{FAKES}")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 20
        while not (child := children.read_text().strip()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (128 + number, "")
    deadline = time.monotonic() + 5
    while is_alive(int(child)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_cuda_s_own_order_decides_among_mixed_cards() -> None:
    mixed = {"gpus": [H200, RTX]}
    # FASTEST_FIRST: CUDA's 0 may be NVML's 1.
    told = asked(nvml=mixed, CUDA_VISIBLE_DEVICES="0", FAKE_CUDA=device(RTX))
    assert status(told, "cards") != "failed"
    assert told["cuda"][0]["text"].startswith(f"cuda:0 is {RTX['name']}")
    done = doctor("--json", nvml=mixed, CUDA_VISIBLE_DEVICES="0", FAKE_CUDA=device(H200))
    assert status(findings(done), "cuda") == "failed"
    assert done.returncode == OTHER_CARD
    assert [each["uuid"] for each in json.loads(done.stdout)["devices"]] == [H200["uuid"]]
    assert [each["uuid"] for each in json.loads(done.stdout)["gpus"]] == [H200["uuid"], RTX["uuid"]]
    by_pci = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert status(asked(nvml=mixed, **by_pci), "cards") == "failed"


def test_mixed_cards_and_mig_are_a_warning() -> None:
    other = RTX | {"name": "NVIDIA GeForce RTX 5090", "uuid": H200["uuid"]}
    told = asked(nvml={"gpus": [RTX, other]})
    assert "several kinds: 1 NVIDIA RTX PRO 6000, 1 NVIDIA GeForce RTX 5090" in told["cards"][0]["text"]
    sliced = {"gpus": [RTX | {"mig": True}], "mig": {"MIG-cccccccc-0000-0000-0000-000000000000": 0}}
    mine = device(RTX | {"uuid": "GPU-cccccccc-0000-0000-0000-000000000000"})
    told = asked(nvml=sliced, CUDA_VISIBLE_DEVICES="MIG-cccc", FAKE_CUDA=mine)
    assert told["cards"][0]["status"] == "warning"
    assert "MIG-cccccccc-0000-0000-0000-000000000000" in told["cuda"][0]["text"]


def test_a_card_that_cuda_does_not_list() -> None:
    cards = several(RTX, 3)
    told = asked(nvml={"gpus": cards}, FAKE_CUDA=";".join(map(device, cards[:2])))
    assert told["cuda"][0]["status"] == "warning"
    assert told["cuda"][0]["text"].startswith("CUDA lists 2 of 3 GPUs and not GPU 2: ")
    assert status(asked(nvml={"gpus": cards}), "cuda") == "ok"


def test_what_the_variables_name_and_is_not_here() -> None:
    told = asked(NVIDIA_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES=f"{RTX['uuid']},GPU-ffff")
    texts = [each["text"] for each in told["gpus"] if each["status"] == "warning"]
    assert any("'GPU-ffff' names none" in text for text in texts)
    assert any("2 asked for, 1 here" in text for text in texts)
    for value in ("", "-1", "none", "void", "7"):
        done = doctor("--json", CUDA_VISIBLE_DEVICES=value)
        assert status(findings(done), "gpus") == "failed"
        assert f"CUDA_VISIBLE_DEVICES={value} names none of the 1 here" in done.stderr


def test_ranks_without_a_gpu_are_a_warning() -> None:
    told = asked("--", "--model-path", "m", "--tp-size", "4", nvml={"gpus": several(RTX, 2)})
    assert told["ranks"][0]["text"] == "4 ranks take GPUs up to cuda:3, CUDA lists 2"


def test_a_model_against_free_memory(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(120 * GIB)
    server = ("--", "--model-path", str(tmp_path))
    two = several(RTX, 2)
    done = doctor("--json", *server, nvml={"gpus": two})
    assert status(findings(done), "memory") == "failed"
    assert done.returncode == GPU_MEMORY
    assert "120.0 GiB of weights for each of 1 ranks, 95.6 GiB free on cuda:0" in done.stderr
    assert status(asked(*server, "--tp-size", "2", nvml={"gpus": two}), "memory") == "ok"
    busy = ";".join((device(two[0]), device(two[1], free=30000)))
    told = asked(*server, "--tp-size", "2", nvml={"gpus": two}, FAKE_CUDA=busy)
    assert [each["status"] for each in told["memory"]] == ["failed"]
    assert "29.3 GiB free on cuda:1" in told["memory"][0]["text"]
    told = asked(*server, "--tp-size", "2", "--mem-fraction-static", "0.5", nvml={"gpus": two})
    assert "--mem-fraction-static 0.5 of them" in told["memory"][0]["text"]
    assert status(told, "memory") == "failed"
    assert status(asked(*server, "--quantization", "fp8", nvml={"gpus": two}), "memory") == "warning"


def card(free: float, ordinal: int = 0) -> cuda.Device:
    return cuda.Device(ordinal, "card", "GPU-0", "12.0", int(free * GIB), 96 * GIB)


@pytest.mark.parametrize(
    ("size", "free", "expected"),
    [(90, 95, ["ok"]), (99, 95, ["warning"]), (50, 60, ["warning", "ok"]), (None, 95, ["warning"])],
)
def test_what_fits_and_what_hardly_does(size: float | None, free: float, expected: list[str]) -> None:
    weights = Weights(None if size is None else int(size * GIB), "it will be downloaded")
    plan = Plan(given=True, known=True, model="m")
    assert [each.status for each in gpus.check_memory([card(free)], plan, weights)] == expected
    with pytest.raises(GpuMemoryError):
        gpus.check_memory([card(free)], plan, Weights(int(free * GIB / 0.94)))


def test_the_gpus_that_the_ranks_take_count() -> None:
    plan = Plan(given=True, known=True, model="m", tensor=2, first_gpu=1, gpu_step=2)
    cards = [card(free, place) for place, free in enumerate((10, 95, 10, 95))]
    assert [each.status for each in gpus.check_memory(cards, plan, Weights(100 * GIB))] == ["ok"]


def test_off_needs_little() -> None:
    done = doctor("--json", "--mode", "off", nvml={"gpus": [H200]})
    told = findings(done)
    assert done.returncode == 0
    assert {check for check in told if status(told, check) == "skipped"} >= {"cards", "contract", "library", "selftest"}
    done = doctor("--json", "--mode", "off", nvml={"init": 18})
    assert done.returncode == 0
    assert findings(done)["nvml"][0]["text"].endswith("(KDTREE_VERIFY=off: going on)")
    assert doctor("--mode", "off", nvml={"gpus": [RTX], "driver": "570.1"}).returncode == DRIVER


def test_without_a_gpu_the_host_library_is_proved() -> None:
    told = asked("--", "--device", "cpu", nvml={"init": 12}, KDTREE_DEVICE="cpu", KDTREE_LIBRARY_DIR=LIBRARIES)
    assert told["selftest"][0]["text"].startswith("self-test on cpu (host library): passed ")
    assert {each["text"] for each in told["cuda"]} == {"KDTREE_DEVICE=cpu"}
    assert doctor("--", "--tp", "1", nvml={"init": 12}, KDTREE_DEVICE="cpu").returncode == USAGE


def test_bad_usage_is_one_line() -> None:
    for arguments, env in ((["--mode", "maybe"], {}), ([], {"KDTREE_ALLOW_CC": "9"}), ([], {"KDTREE_VERIFY": "yes"})):
        done = doctor(*arguments, **env)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (USAGE, "", 1)
        assert ". Fix: " in done.stderr


def test_one_gpu_has_no_peer_and_two_without_cuda_fail() -> None:
    assert asked("--p2p")["p2p"][0]["text"] == "one GPU has no peer"
    done = doctor("--json", "--p2p", nvml={"gpus": several(RTX, 2)})
    assert findings(done)["p2p"][0]["code"] == PEERS  # torch, which finds the fakes wanting
