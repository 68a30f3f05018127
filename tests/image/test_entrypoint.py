"""docker/entrypoint.py as a process: what it refuses and how, what it hands over. NVML is a fake, given by variable."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_driver import FAKES, H200, RTX, environment, is_alive, several

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.py"
USAGE, DRIVER, OTHER_CARD, DEVICE, CUDA, GPU_MEMORY, CONTRACT = 64, 65, 66, 69, 71, 73, 78

SERVER = ["--model-path", "m"]


def run(*arguments: str, nvml: dict[str, Any] | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The entrypoint with these arguments and variables; a machine with one product GPU unless told otherwise."""
    given = environment({"gpus": [RTX]} if nvml is None else nvml, **{"PYTHONPATH": str(FAKES), **env})
    command = [sys.executable, str(ENTRYPOINT), *arguments]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)


def handed_over(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line of a refusal, checked for its form."""
    lines = [line for line in done.stderr.splitlines() if "Fix: " in line]
    assert (done.returncode, done.stdout, len(lines)) == (code, "", 1), done.stderr
    assert lines[0].startswith("kdtree: ")
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize("mode", ["off", "validate", "on"])
def test_a_product_gpu_is_listed_and_the_arguments_reach_the_launcher(mode: str) -> None:
    done = run(*SERVER, "--tp-size", "2", KDTREE_VERIFY=mode)
    assert handed_over(done)["argv"] == [*SERVER, "--tp-size", "2"]
    for part in (f"mode {mode}", RTX["name"], RTX["uuid"], "12.0", "97887 MiB", "580.95.05"):
        assert part in done.stderr


def test_nothing_of_it_remains() -> None:
    env = environment({"gpus": [RTX]}, PYTHONPATH=str(FAKES), KDTREE_VERIFY="on")
    process = subprocess.Popen([sys.executable, str(ENTRYPOINT), *SERVER], env=env, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=60)
    assert json.loads(output)["pid"] == process.pid


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_another_card_is_refused_by_name(mode: str) -> None:
    line = refusal(run(*SERVER, nvml={"gpus": [RTX, H200]}, KDTREE_VERIFY=mode), OTHER_CARD)
    assert H200["uuid"] in line
    assert "9.0" in line
    assert RTX["uuid"] not in line


def test_off_takes_any_card() -> None:
    handed_over(run(*SERVER, nvml={"gpus": [H200]}))


def test_the_development_override_accepts_and_warns() -> None:
    done = run(*SERVER, nvml={"gpus": [RTX, H200]}, KDTREE_VERIFY="on", KDTREE_ALLOW_CC="8.9, 9.0")
    handed_over(done)
    assert "warning: KDTREE_ALLOW_CC" in done.stderr


def test_only_gpus_that_cuda_would_use_count() -> None:
    mixed = {"gpus": [H200, RTX]}
    handed_over(run(*SERVER, nvml=mixed, KDTREE_VERIFY="on", CUDA_VISIBLE_DEVICES="GPU-aaaa"))
    refusal(run(*SERVER, nvml=mixed, KDTREE_VERIFY="on", CUDA_VISIBLE_DEVICES="GPU-bbbb"), OTHER_CARD)
    assert "CUDA_VISIBLE_DEVICES" in refusal(run(*SERVER, KDTREE_VERIFY="on", CUDA_VISIBLE_DEVICES=""), DEVICE)


def test_a_mig_device_counts_as_its_gpu() -> None:
    nvml = {"gpus": [RTX | {"mig": True}, H200], "mig": {"MIG-one": 0, "MIG-two": 1}}
    done = run(*SERVER, nvml=nvml, KDTREE_VERIFY="on", CUDA_VISIBLE_DEVICES="MIG-one")
    handed_over(done)
    assert "MIG on" in done.stderr
    refusal(run(*SERVER, nvml=nvml, KDTREE_VERIFY="on", CUDA_VISIBLE_DEVICES="MIG-two"), DEVICE)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_an_old_driver_is_refused_in_every_mode(mode: str) -> None:
    line = refusal(run(*SERVER, nvml={"driver": "575.57.08", "gpus": [RTX]}, KDTREE_VERIFY=mode), DRIVER)
    assert "575.57.08" in line
    assert "580" in line


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        ({"init": 12}, "--gpus all"),  # library not found
        ({"init": 9}, "load the NVIDIA driver"),  # driver not loaded
        ({"init": 18}, "restart the host"),  # library and driver of two versions
        ({"init": 4}, "open /dev/nvidia"),  # no permission
        ({"gpus": []}, "--gpus all"),
        ({"gpus": [RTX | {"error": 15}]}, "reset the GPU"),  # the GPU is lost
        ({"gpus": [RTX | {"error": 15}], "shutdown": 15}, "reset the GPU"),
    ],
)
def test_nvml_faults(nvml: dict[str, Any], words: str) -> None:
    assert words in refusal(run(*SERVER, nvml=nvml, KDTREE_VERIFY="validate"), DEVICE)
    off = run(*SERVER, nvml=nvml)
    assert handed_over(off)["argv"] == SERVER


def test_a_driver_that_does_not_say_which_it_is() -> None:
    nvml = {"gpus": [RTX], "driver": "N/A"}
    assert "reinstall the driver" in refusal(run(*SERVER, nvml=nvml, KDTREE_VERIFY="validate"), DRIVER)
    assert handed_over(run(*SERVER, nvml=nvml))["argv"] == SERVER


@pytest.mark.parametrize("driver", ["580", "580-server", "580.65.06-beta", "1000.1"])
def test_a_driver_that_is_new_enough(driver: str) -> None:
    handed_over(run(*SERVER, nvml={"driver": driver, "gpus": [RTX], "shutdown": 999}, KDTREE_VERIFY="on"))


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_cuda_is_started_before_the_server_and_by_another_process(mode: str) -> None:
    done = run(*SERVER, KDTREE_VERIFY=mode)
    handed_over(done)
    assert f"cuda:0 is {RTX['name']}, {RTX['uuid']}" in done.stderr
    line = refusal(run(*SERVER, KDTREE_VERIFY=mode, FAKE_CUDA_FAIL="cuInit=999"), CUDA)
    assert "CUDA does not start: cuInit" in line
    refusal(run(*SERVER, KDTREE_VERIFY=mode, FAKE_CUDA_CRASH="cuInit"), CUDA)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_checks(number: int) -> None:
    env = environment({"gpus": [RTX]}, PYTHONPATH=str(FAKES), KDTREE_VERIFY="on", FAKE_CUDA_HANG="cuInit")
    command = [sys.executable, str(ENTRYPOINT), *SERVER]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 20
        while not (child := children.read_text().strip()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == -number
    assert "Traceback" not in errors
    deadline = time.monotonic() + 5
    while is_alive(int(child)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_off_starts_no_cuda_and_goes_on() -> None:
    done = run(*SERVER, FAKE_CUDA_CRASH="cuInit")
    handed_over(done)
    assert "CUDA does not start" not in done.stderr
    assert "cuda:0" not in done.stderr


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(150 << 30)
    server = ["--model-path", str(tmp_path), "--tp-size", "1"]
    assert "150.0 GiB of weights" in refusal(run(*server, KDTREE_VERIFY="on"), GPU_MEMORY)
    handed_over(run(*server))
    handed_over(run(*server[:2], "--tp-size", "2", nvml={"gpus": several(RTX, 2)}, KDTREE_VERIFY="on"))


def test_without_the_wheel_programs_run_and_a_server_does_not() -> None:
    env = {"PATH": os.environ["PATH"], "KDTREE_VERIFY": "off"}
    bare = [sys.executable, "-S", str(ENTRYPOINT)]
    done = subprocess.run([*bare, *SERVER], env=env, capture_output=True, text=True, timeout=60)
    assert "the kdtree-verify wheel cannot be imported: No module named 'kdtree_verify'" in refusal(done, CONTRACT)
    assert subprocess.run([*bare, "sh", "-c", "exit 7"], env=env, timeout=60).returncode == 7


def test_neither_torch_nor_sglang_is_imported() -> None:
    code = f"import sys; sys.path.insert(0, '{ROOT / 'docker'}'); import entrypoint; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "'kdtree_verify.doctor.run'" in done.stdout
    assert not {"'torch'", "'sglang'", "'numpy'", "'cuda'"} & set(done.stdout.strip("[]\n").split(", "))


def test_no_nvml_module() -> None:
    # -S leaves site-packages out; the launcher's fake is not reached.
    env = {"PATH": os.environ["PATH"], "KDTREE_VERIFY": "on", "PYTHONPATH": str(ROOT / "patch" / "src")}
    command = [sys.executable, "-S", str(ENTRYPOINT), *SERVER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert "rebuild the image" in refusal(done, DEVICE)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("KDTREE_VERIFY", "On", "off, validate, on"),
        ("KDTREE_VERIFY", "true", "off, validate, on"),
        ("KDTREE_DEVICE", "gpu", "cuda, cpu"),
        ("KDTREE_ALLOW_CC", "9", "'9'"),
        ("KDTREE_ALLOW_CC", "9.0 10.0", "'9.0 10.0'"),
    ],
)
def test_a_bad_value_is_refused(variable: str, value: str, words: str) -> None:
    line = refusal(run(*SERVER, **{variable: value}), USAGE)
    assert variable in line
    assert words in line


def test_the_cpu_needs_a_server_on_the_cpu() -> None:
    assert "--device cpu" in refusal(run(*SERVER, nvml={"init": 12}, KDTREE_DEVICE="cpu", KDTREE_VERIFY="on"), USAGE)
    for device in (["--device", "cpu"], ["--device=cpu"]):
        done = run(*SERVER, *device, nvml={"init": 12}, KDTREE_DEVICE="cpu", KDTREE_VERIFY="on")
        handed_over(done)
        assert "warning: KDTREE_DEVICE=cpu" in done.stderr


def test_programs_run_as_given() -> None:
    done = run("sh", "-c", "echo $0 $1; exit 7", "a", "-b", nvml={"init": 12}, KDTREE_VERIFY="nonsense")
    assert (done.returncode, done.stdout, done.stderr) == (7, "a -b\n", "")


def test_what_is_no_program() -> None:
    assert run("no-such-program").returncode == 127
    assert run("/etc/hostname").returncode == 126
    assert "no arguments" in refusal(run(), USAGE)
    assert "an empty argument" in refusal(run(""), USAGE)


def test_the_api_key_goes_by_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text('se"cret\n')
    done = run(*SERVER, KDTREE_API_KEY_FILE=str(key), KDTREE_STATE_DIR=str(tmp_path / "state"))
    told = handed_over(done)
    assert told["config"] == 'api-key: "se\\"cret"\n'
    assert told["mode"] == "0o600"
    assert told["argv"][2:] == SERVER
    assert 'se"cret' not in str(told["argv"]) + done.stderr


def test_a_second_server_leaves_the_first_ones_key(tmp_path: Path) -> None:
    """It is refused by the launcher only, and the first may not have read its own yet; what a dead one left goes."""
    (tmp_path / "key").write_text("second")
    living, dead = (tmp_path / f"server-arguments-{name}.yaml" for name in ("living", "dead"))
    for path in (living, dead):
        path.write_text('api-key: "first"\n')
    with living.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run(*SERVER, KDTREE_API_KEY_FILE=str(tmp_path / "key"), KDTREE_STATE_DIR=str(tmp_path))
    told = handed_over(done)
    assert told["config"] == 'api-key: "second"\n'
    assert told["locked"], "what the entrypoint became holds it"
    assert living.read_text() == 'api-key: "first"\n'
    assert not dead.exists()


def test_nor_does_one_in_another_container(tmp_path: Path) -> None:
    """Both are process 1 of their own."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user, or this sandbox, may make no PID namespace")
    environments = []
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
        variables = {"KDTREE_API_KEY_FILE": str(tmp_path / name), "KDTREE_STATE_DIR": str(tmp_path / "state")}
        environments.append(environment({"gpus": [RTX]}, PYTHONPATH=str(FAKES), **variables))
    command = [*apart, sys.executable, str(ENTRYPOINT), *SERVER]
    lives = {"FAKE_LAUNCH_WAITS": "1"}
    with subprocess.Popen(
        command, env=environments[0] | lives, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        told = json.loads(first.stdout.readline())
        second = subprocess.run(command, env=environments[1], capture_output=True, text=True, timeout=60)
        assert handed_over(second)["config"] == 'api-key: "second"\n'
        assert Path(told["argv"][1]).read_text() == 'api-key: "first"\n'
        first.communicate("\n", timeout=60)
    assert told["pid"] == json.loads(second.stdout)["pid"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away, which root may")
def test_no_key_goes_into_a_folder_that_somebody_else_has_made(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    folder = tmp_path / f"kdtree-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    given = {"KDTREE_API_KEY_FILE": str(tmp_path / "key"), "XDG_RUNTIME_DIR": str(tmp_path)}
    assert f"{folder} is user 65534's" in refusal(run(*SERVER, **given), USAGE)
    assert list(folder.iterdir()) == []
    # Named by whoever starts the server, it is his word.
    assert handed_over(run(*SERVER, **given, KDTREE_STATE_DIR=str(folder)))["config"]


def test_no_key_file_and_a_device_mean_no_key() -> None:
    for path in ("", "/dev/null"):
        assert handed_over(run(*SERVER, KDTREE_API_KEY_FILE=path))["argv"] == SERVER


@pytest.mark.parametrize("content", ["", "\n", "two words", "-leading", "\ufeffkey", "schlüssel", "k\x7f", None])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str | None) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content, encoding="utf-8")
    line = refusal(run(*SERVER, KDTREE_API_KEY_FILE=str(key), KDTREE_STATE_DIR=str(tmp_path)), USAGE)
    assert str(key) in line
    assert "leading" not in line.replace("a leading -", "")


def test_a_key_and_a_configuration_exclude_each_other(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    refusal(run("--config", "mine.yaml", KDTREE_API_KEY_FILE=str(key), KDTREE_STATE_DIR=str(tmp_path)), USAGE)


def test_it_takes_well_under_a_second() -> None:
    started = time.process_time(), time.monotonic()
    handed_over(run(*SERVER, KDTREE_VERIFY="on"))
    # Both processes together, Python's own start included.
    assert time.monotonic() - started[1] < 2.0
