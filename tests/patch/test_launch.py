"""`python -m kdtree_verify.launch`: refuses before anything starts, and is SGLang's launch_server otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kdtree_verify import preflight
from kdtree_verify.config import Device
from kdtree_verify.errors import ContractError
from kdtree_verify.native import library

TRITON = ["--model-path", "m", "--device", "cpu", "--attention-backend", "triton"]

# Prints what a spawned child sees of its parent, as SGLang's ranks do.
FAKE_SERVER = """
import multiprocessing, os, sys

def child(queue):
    queue.put([sys.modules["__main__"].__name__, sys.modules["__mp_main__"].__spec__.name, sys.argv[1:]])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(__name__, __spec__.name, sys.argv[1:], queue.get(timeout=60), os.environ.get("KDTREE_VERIFY"))
    process.join()
    sys.exit(7)
"""


def launch(mode: str, *arguments: str, state_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kdtree_verify.launch", *arguments],
        env={
            **os.environ,
            "KDTREE_VERIFY": mode,
            "KDTREE_DEVICE": "cpu",
            "KDTREE_STATE_DIR": str(state_dir),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def refusal(run: subprocess.CompletedProcess[str]) -> str:
    line = run.stderr.strip().splitlines()[-1]
    assert line.startswith("kdtree: ")
    assert run.stderr.count(" Fix: ") == 1
    assert " Fix: " in line
    return line


@pytest.mark.parametrize(
    ("mode", "environment", "code", "words"),
    [
        ("ON", {}, 64, "off, validate, on"),
        ("on", {"KDTREE_LOG_INTERVAL": "never"}, 64, "KDTREE_LOG_INTERVAL"),
        ("on", {"KDTREE_LIBRARY_DIR": "/no/such/folder"}, 70, "the kernel library is missing"),
        ("validate", {"SGLANG_PLUGINS": "other, another"}, 78, "SGLANG_PLUGINS='other, another'"),
        ("validate", {"KDTREE_STATE_DIR": "/proc/kdtree"}, 64, "the state folder cannot be written"),
    ],
)
def test_refused_before_sglang_is_imported(tmp_path, mode, environment, code, words) -> None:
    run = launch(mode, *TRITON, **{"state_dir": tmp_path, **environment})
    assert words in refusal(run)
    assert run.returncode == code
    assert not (tmp_path / "server.json").exists()


@pytest.mark.parametrize(("part", "words"), [(0.0, "does not load"), (0.1, "is cut short"), (0.99, "is cut short")])
def test_a_library_that_is_none_or_a_part_of_one(tmp_path, part, words) -> None:
    # Handed to the loader, a part of a library ends the process by SIGBUS.
    name = library.FILE_NAMES[Device.CPU]
    whole = Path(os.environ["KDTREE_LIBRARY_DIR"], name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(part * len(whole))] or b"not ELF")
    run = launch("on", *TRITON, state_dir=tmp_path, KDTREE_LIBRARY_DIR=str(tmp_path))
    assert f"the kernel library {words}" in refusal(run)
    assert run.returncode == 70


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attention-backend", "torch_native"], "needs the Triton attention backend for verify: torch_native"),
        (["--attention-backend", "triton", "--use-ray"], "does not load plugins in Ray's schedulers"),
    ],
)
def test_a_command_line_that_cannot_work(tmp_path, arguments, words) -> None:
    run = launch("on", "--model-path", "m", *arguments, state_dir=tmp_path)
    assert words in refusal(run)
    assert run.returncode == 78


def test_the_server_runs_as_main_and_children_find_it(tmp_path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(FAKE_SERVER)
    run = launch("off", "--model-path", "m", "--tp", "2", state_dir=tmp_path / "state", PYTHONPATH=str(tmp_path))
    assert run.returncode == 7
    given = ["--model-path", "m", "--tp", "2"]
    # A child's __main__ is __mp_main__, imported from the server's module and not from the launcher's.
    child = ["__mp_main__", "sglang.launch_server", given]
    assert run.stdout.strip() == f"__main__ sglang.launch_server {given} {child} off"


def test_off_hands_over_even_if_nothing_of_ours_works(tmp_path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text("print('served')")
    run = launch("off", state_dir=Path("/proc/kdtree"), PYTHONPATH=str(tmp_path), KDTREE_LIBRARY_DIR="/no/such")
    assert (run.returncode, run.stdout) == (0, "served\n")
    assert "the state folder is not used" in run.stderr


def test_sglang_answers_for_help_and_mistakes(tmp_path) -> None:
    run = launch("on", "--no-such-option", state_dir=tmp_path, SGLANG_PLUGINS="kdtree")
    assert run.returncode == 2
    assert "unrecognized arguments: --no-such-option" in run.stderr or "--model-path" in run.stderr


def test_a_rank_that_refused_gives_its_line_and_code(tmp_path) -> None:
    # SGLang itself only says that a rank died during initialization.
    state_dir, package = tmp_path / "state", tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    document = {"exit_code": 70, "reason": "kdtree: self-test. Fix: none", "updated_at": 1.0}
    (package / "launch_server.py").write_text(
        "import os, json, pathlib\n"
        "folder = pathlib.Path(os.environ['KDTREE_STATE_DIR'])\n"
        f"(folder / 'rank-dp0-pp0-tp0.json').write_text(json.dumps({document!r}))\n"
        "raise RuntimeError('Rank 0 scheduler died')\n"
    )
    run = launch("off", state_dir=state_dir, PYTHONPATH=str(tmp_path))
    assert run.returncode == 70
    assert run.stderr.splitlines()[-1] == document["reason"]
    assert "Rank 0 scheduler died" in run.stderr


def test_a_state_folder_is_one_servers(tmp_path) -> None:
    from kdtree_verify.reporting import state

    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, pathlib; from kdtree_verify.reporting import state; "
         "state.prepare(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()", str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    state.write(tmp_path / state.SERVER_FILE, {"of": "the first"})
    run = launch("on", *TRITON, state_dir=tmp_path)
    assert "another server's" in refusal(run)
    assert run.returncode == 64
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text("import os; print(os.environ['KDTREE_STATE_DIR'])")
    run = launch("off", state_dir=tmp_path, PYTHONPATH=str(tmp_path))
    assert (run.returncode, run.stdout) == (0, "/dev/null\n")
    assert "another server's" in run.stderr
    assert "the first" in (tmp_path / state.SERVER_FILE).read_text()
    holder.kill()
    holder.wait()
    state.prepare(tmp_path)
    assert not (tmp_path / state.SERVER_FILE).exists()


def test_a_state_file_is_written_through_no_link(tmp_path) -> None:
    from kdtree_verify.reporting import state

    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / f".server.json.{os.getpid()}").symlink_to(other)
    state.write(tmp_path / state.SERVER_FILE, {"schema": 1})
    assert other.read_text() == "mine"
    assert json.loads((tmp_path / state.SERVER_FILE).read_text()) == {"schema": 1}


def test_the_plugin_must_be_found(monkeypatch) -> None:
    monkeypatch.setattr(preflight, "entry_points", lambda group: ())
    with pytest.raises(ContractError, match="SGLang cannot find the plugin"):
        preflight.check_plugin("")


@pytest.mark.parametrize("allowed", ["", "kdtree", " other , kdtree ", "kdtree,"])
def test_plugins_that_sglang_would_load(allowed) -> None:
    preflight.check_plugin(allowed)


@pytest.mark.parametrize("allowed", [",", " ", "other", "KDTREE", "kdtree-verify"])
def test_plugins_that_sglang_would_leave_out(allowed, monkeypatch) -> None:
    # SGLang's own word for it, then ours.
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins_by_group

    monkeypatch.setenv("SGLANG_PLUGINS", allowed)
    assert preflight.NAME not in load_plugins_by_group(GENERAL_PLUGINS_GROUP)
    with pytest.raises(ContractError, match="would leave the plugin out"):
        preflight.check_plugin(allowed)


def test_preflight_names_what_it_found(tmp_path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "kdtree_verify.preflight"], capture_output=True, text=True, env={**os.environ}
    )
    assert run.returncode == 0, run.stderr
    assert "libkdtree_verify_host.so" in run.stdout
    assert "as expected" in run.stdout
    empty = {**os.environ, "KDTREE_LIBRARY_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-m", "kdtree_verify.preflight"], capture_output=True, text=True, env=empty)
    assert run.returncode == 70


def test_server_file(tmp_path) -> None:
    from kdtree_verify.config import Mode
    from kdtree_verify.reporting import state

    state.write(tmp_path / state.SERVER_FILE, state.server_document(Mode.ON, ["--api-key", "***"], 4))
    found = json.loads((tmp_path / "server.json").read_text())
    assert found["mode"] == "on"
    assert found["expected_ranks"] == 4
    assert found["pid"] == os.getpid()
