"""The `kdtree` command as a process: exit codes, one clear line, and what it costs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kdtree_verify.config import Mode
from kdtree_verify.errors import DeviceError, UsageError
from kdtree_verify.native import devices
from kdtree_verify.reporting.state import Identity, State, Verdict, rank_document, rank_path, server_document, write

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "patch" / "src"


def kdtree(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kdtree_verify.cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCES), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("kdtree: ")
    assert ". Fix: " in lines[0]
    return lines[0]


def test_a_servers_argument_without_the_dashes_before_it_is_told_where_it_goes() -> None:
    line = refused(kdtree("doctor", "--model-path", "/models/m"), 64)
    assert "unrecognized arguments: --model-path. Fix: " in line
    assert "kdtree doctor -- --model-path" in line
    assert "see kdtree --help" in refused(kdtree("status", "--model-path"), 64)


@pytest.fixture
def served(tmp_path):
    write(tmp_path / "server.json", server_document(Mode.ON, ["--port", "1"], 1))
    identity = Identity(0, 0, 0, os.getpid())
    write(rank_path(tmp_path, identity), rank_document(Mode.ON, identity, Verdict(State.ARMED)))
    return str(tmp_path)


def test_the_wheel_installs_it_and_the_recorded_results():
    project = tomllib.loads((ROOT / "patch" / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"kdtree": "kdtree_verify.cli:main"}
    data = project["tool"]["setuptools"]["package-data"]
    assert "golden.npz" in data["kdtree_verify.selftest"]


@pytest.mark.parametrize("command", [[], ["selftest"], ["status"], ["health"], ["replay"], ["version"]])
def test_each_command_explains_itself(command):
    done = kdtree(*command, "--help")
    assert done.returncode == 0
    assert "usage: kdtree" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bogus"],
        ["health", "--bogus"],
        ["health", "--timeout", "soon"],
        ["health", "--url", "ftp://host"],
        ["health", "--live", "--ready"],
        ["selftest", "--device", "gpu"],
        ["selftest", "--device", "cuda:x"],
        ["selftest", "--heads", "many"],
        ["selftest", "--device", "cpu", "--heads", "129"],
        ["selftest", "--device", "cpu", "--draft-tokens", "0"],
    ],
)
def test_a_bad_argument_is_one_line_and_64(arguments, served):
    refused(kdtree(*arguments, KDTREE_STATE_DIR=served), 64)


def test_a_bad_environment_is_one_line_and_64():
    assert "off, validate, on" in refused(kdtree("health", KDTREE_VERIFY="yes"), 64)


def test_health_tells_by_its_exit_code(served, tmp_path):
    done = kdtree("health", KDTREE_STATE_DIR=served)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "healthy: on, 1 ranks, 0 kernel calls (no verify call yet)\n"
    assert "no server has reported" in refused(kdtree("health", KDTREE_STATE_DIR=str(tmp_path / "none")), 1)
    for option in (["--url", "auto"], ["--ready"]):
        assert ":30000/ready does not answer" in refused(kdtree("health", *option, KDTREE_STATE_DIR=served), 1)
    assert kdtree("health", "--live", KDTREE_STATE_DIR=served).stdout == "live: on, 1 of 1 ranks report\n"


def test_health_is_quick_and_imports_neither_torch_nor_numpy(served):
    code = (
        "import sys, time; began = time.perf_counter(); from kdtree_verify.cli import main; code = main(['health'])\n"
        "print(time.perf_counter() - began, code, sorted({'torch', 'numpy', 'sglang'} & set(sys.modules)))"
    )
    fastest = 9.0
    for _ in range(3):  # the machine may be busy
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(SOURCES), "KDTREE_STATE_DIR": served},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, result, modules = done.stdout.splitlines()[-1].split(" ", 2)
        assert (result, modules) == ("0", "[]")
        fastest = min(fastest, float(seconds))
    assert fastest < 0.3


@pytest.mark.parametrize(
    ("arguments", "where", "code", "told"),
    [
        # A verdict's exit code is not what becomes of a reader, or a disk.
        (["status", "--json"], "| true; exit ${PIPESTATUS[0]}", 141, ""),
        (["version"], "| true; exit ${PIPESTATUS[0]}", 141, ""),
        (["status"], ">/dev/full", 64, "kdtree: the output cannot be written: No space left on device. Fix: "),
        (["status"], ">&-", 0, ""),
    ],
)
def test_a_reader_that_has_enough(served, arguments, where, code, told):
    command = f"sleep 0.2; {shlex.join([sys.executable, '-m', 'kdtree_verify.cli', *arguments])}"
    done = subprocess.run(
        ["bash", "-c", f"({command}) {where}"],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "KDTREE_STATE_DIR": served},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert done.stderr.startswith(told)
    assert done.stderr.count("\n") == bool(told)


def watched(*arguments: str, **environment: str) -> tuple[list[str], int]:
    """The first lines of `status --watch` while what it shows changes, and how it ends after Ctrl-C."""
    command = [sys.executable, "-m", "kdtree_verify.cli", "status", "--watch", "0.05", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        write(Path(environment["KDTREE_STATE_DIR"]) / "server.json", server_document(Mode.ON, [], 1))
        while '"mode": "on"' not in lines[-1] and "mode on" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended"
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    return lines, process.returncode


def test_status_is_watched_from_before_the_server_starts(tmp_path):
    lines, code = watched(KDTREE_STATE_DIR=str(tmp_path))
    assert "every 0.05 s" in lines[0]
    assert "no server has reported" in lines[1]
    assert code == 0


def test_status_is_watched_as_a_document_a_line(tmp_path):
    lines, code = watched("--json", KDTREE_STATE_DIR=str(tmp_path))
    documents = [json.loads(line) for line in lines]
    assert documents[0]["server"] is None
    assert documents[-1]["server"]["mode"] == "on"
    assert code == 0


def test_status_is_not_watched_at_a_nonsense_interval(tmp_path):
    assert "'0' is no number of seconds" in refused(
        kdtree("status", "--watch", "0", KDTREE_STATE_DIR=str(tmp_path)), 64
    )


def test_status_as_table_and_as_json(served, tmp_path):
    done = kdtree("status", KDTREE_STATE_DIR=served)
    assert done.returncode == 0
    assert "dp0-pp0-tp0" in done.stdout
    document = json.loads(kdtree("status", "--json", KDTREE_STATE_DIR=served).stdout)
    assert document["healthy"] is True
    assert document["ranks"][0]["alive"] is True
    assert document["ranks"][0]["state"] == "armed"
    none = str(tmp_path / "none")
    assert "no server has reported" in refused(kdtree("status", KDTREE_STATE_DIR=none), 1)
    done = kdtree("status", "--json", KDTREE_STATE_DIR=none)
    assert done.returncode == 1
    assert json.loads(done.stdout)["healthy"] is False


def test_status_says_how_many_calls_are_kept(served, tmp_path):
    here = {"KDTREE_STATE_DIR": served, "KDTREE_EVIDENCE_DIR": str(tmp_path)}
    assert "kept" not in kdtree("status", **here).stdout
    assert json.loads(kdtree("status", "--json", **here).stdout)["captures"] == []
    captures = tmp_path / "captures"
    captures.mkdir()
    for name in ("b.safetensors", "a.safetensors", ".c.safetensors.part", "notes.txt"):
        (captures / name).touch()
    last = kdtree("status", **here).stdout.splitlines()[-1]
    assert last == f"2 calls out of bound are kept in {captures}: kdtree replay FILE"
    kept = json.loads(kdtree("status", "--json", **here).stdout)["captures"]
    assert kept == [str(captures / name) for name in ("a.safetensors", "b.safetensors")]


def test_what_a_server_of_old_left_is_shown_but_is_no_server(served):
    Path(served, "server.json").unlink()
    done = kdtree("status", KDTREE_STATE_DIR=served)
    assert "no server has reported" in done.stdout
    assert "dp0-pp0-tp0" in done.stdout
    assert done.returncode == 1


def test_version_names_libraries_that_are_there_and_those_that_are_not(tmp_path):
    document = json.loads(kdtree("version", "--json").stdout)
    assert document["libraries"]["cpu"]["device_kind"] == "host"
    assert len(document["libraries"]["cpu"]["sha256"]) == 64
    assert document["kdtree_verify"]
    missing = kdtree("version", KDTREE_LIBRARY_DIR=str(tmp_path))
    assert missing.returncode == 0
    assert missing.stdout.count("the kernel library is missing") == 2


def test_selftest_on_the_cpu():
    done = kdtree("selftest", "--device", "cpu", "--heads", "2", "--draft-tokens", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cpu (host library): passed 18 cases, 2 heads, 3 draft tokens")
    done = kdtree("selftest", "--heads", "2", "--draft-tokens", "3", "--json", KDTREE_DEVICE="cpu")
    document = json.loads(done.stdout)
    assert document["passed"] is True
    assert [report["device"] for report in document["reports"]] == ["cpu"]


def test_selftest_without_a_library_is_70(tmp_path):
    line = refused(kdtree("selftest", "--device", "cpu", KDTREE_LIBRARY_DIR=str(tmp_path)), 70)
    assert "the kernel library is missing" in line


def test_a_library_folder_that_cannot_even_be_asked_about_is_70(tmp_path):
    done = kdtree("selftest", "--device", "cpu", KDTREE_LIBRARY_DIR=str(tmp_path / ("a" * 300)))
    assert "the kernel library is missing" in refused(done, 70)


@pytest.mark.parametrize(
    ("device", "error"),
    [("cuda:²", UsageError), ("cuda:" + "9" * 5000, UsageError), ("cuda:256", DeviceError), ("cuda:1", DeviceError)],
)
def test_a_device_that_is_none(monkeypatch, device, error):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert [str(each) for each in devices.on_machine("cuda:0")] == ["cuda:0"]
    with pytest.raises(error):
        devices.on_machine(device)


def test_selftest_without_torch_is_69(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    done = kdtree("selftest", "--device", "cpu", PYTHONPATH=f"{tmp_path}:{SOURCES}")
    assert "no torch to prove the kernel with" in refused(done, 69)


def test_selftest_without_a_gpu_is_69():
    assert "no CUDA device" in refused(kdtree("selftest", "--device", "cuda:0", CUDA_VISIBLE_DEVICES=""), 69)


def test_a_library_that_is_wrong_is_76_and_the_line_says_where(defective_dir):
    wrong = {"KDTREE_LIBRARY_DIR": str(defective_dir), "KDTREE_DEFECT": "head-stride"}
    done = kdtree("selftest", "--device", "cpu", "--heads", "4", "--draft-tokens", "5", **wrong)
    line = refused(done, 76)
    assert "failed its self-test on cpu" in line
    assert "shape prefix-0, variant 1 (float64), eager: request 0, token" in line
    assert "FAILED 16 of 18 cases" in done.stdout
    done = kdtree("selftest", "--device", "cpu", "--heads", "4", "--draft-tokens", "5", "--json", **wrong)
    assert done.returncode == 76
    cases = json.loads(done.stdout)["reports"][0]["cases"]
    assert {case["shape"] for case in cases if case["passed"]} == {"record", "compare"}
