"""How far a start is: a rank's phases, how much it has read, and what the launcher's thread tells of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from kdtree_verify import contract
from kdtree_verify.config import Config, Mode, from_environment
from kdtree_verify.doctor.arguments import Plan
from kdtree_verify.reporting import health, state, status, status_table
from kdtree_verify.reporting.state import Identity, State, Verdict
from kdtree_verify.startup import about, clock
from kdtree_verify.startup.follow import follow
from kdtree_verify.startup.phases import Phase, Phases
from kdtree_verify.startup.watch import Watch
from kdtree_verify.startup.weights import Loading, Reading

MEGABYTE = 1 << 20


def document(folder: Path) -> dict[str, Any]:
    (rank,) = status.read(folder).ranks
    assert rank.error is None
    return rank.document


# ---- a rank's phases


def test_a_rank_tells_each_phase_as_it_begins(tmp_path: Path) -> None:
    phases = Phases(Mode.ON, tmp_path)
    assert phases.fields() == {"phase": None, "phase_since": None, "phases": []}
    for phase in (Phase.STARTING, Phase.WEIGHTS, Phase.WEIGHTS):
        phases.enter(phase)
    found = document(tmp_path)
    assert (found["state"], found["phase"]) == ("loading", "loading weights")
    assert [entered["name"] for entered in found["phases"]] == ["starting", "loading weights"]
    assert found["started_at"] == found["phases"][0]["since"] <= found["phase_since"] == found["phases"][1]["since"]


def test_a_folder_that_cannot_be_written_stops_nothing() -> None:
    phases = Phases(Mode.ON, Path("/proc/kdtree"))
    phases.enter(Phase.STARTING)
    phases.hand_over(Path("/proc/kdtree/rank-x.json"))
    phases.enter(Phase.READY)
    assert phases.fields()["phase"] == "ready"


def test_an_armed_rank_writes_itself_and_leaves_no_second_file(tmp_path: Path) -> None:
    phases, written = Phases(Mode.ON, tmp_path), []
    phases.enter(Phase.STARTING)
    phases.hand_over(tmp_path / "rank-dp0-pp0-tp3.json", lambda: written.append(phases.fields()["phase"]))
    phases.enter(Phase.GRAPHS)
    assert written == ["capturing graphs"]
    assert list(tmp_path.glob("rank-*.json")) == []  # the name that it had at first


def test_another_rank_s_file_is_left_alone(tmp_path: Path) -> None:
    phases = Phases(Mode.ON, tmp_path)
    phases.enter(Phase.STARTING)
    (path,) = tmp_path.glob("rank-*.json")
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
    phases.hand_over(tmp_path / "rank-dp1-pp0-tp0.json")
    assert path.exists()


def test_the_runner_s_methods_tell_and_are_called_as_ever(tmp_path: Path) -> None:
    class Runner:
        is_draft_worker = False

        def load_model(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return "loaded", args, kwargs

        def init_cuda_graphs(self) -> None:
            raise RuntimeError("no memory")

    phases = Phases(Mode.ON, tmp_path)
    follow(Runner, phases)
    follow(Runner, phases)
    assert Runner().load_model(1, two=2) == ("loaded", (1,), {"two": 2})
    assert phases.fields()["phase"] == "loading weights"
    draft = Runner()
    draft.is_draft_worker = True
    draft.load_model()
    assert phases.fields()["phase"] == "loading the draft's weights"
    with pytest.raises(RuntimeError, match="no memory"):
        Runner().init_cuda_graphs()
    assert phases.fields()["phase"] == "capturing graphs"
    assert len(phases.fields()["phases"]) == 3


def test_a_method_that_is_missing_is_left_out(tmp_path: Path) -> None:
    follow(type("Runner", (), {}), Phases(Mode.ON, tmp_path))


def test_sglang_has_these_methods() -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    assert callable(getattr(ModelRunner, contract.LOAD))
    assert callable(getattr(ModelRunner, contract.CAPTURE))


# ---- status and health


def loading(folder: Path, name: int = 0, age: float = 0.0, pid: int | None = None, **fields: Any) -> None:
    """A rank's file and server.json, as a launcher and a rank with validate write them."""
    identity = Identity(name, 0, 0, os.getpid() if pid is None else pid)
    found = state.rank_document(Mode.VALIDATE, identity, Verdict(State.LOADING))
    since = time.time() - age
    entered = [{"name": "starting", "since": since - 2}, {"name": "loading weights", "since": since}]
    found |= {"phase": "loading weights", "phase_since": since, "phases": entered, "updated_at": since}
    state.write(state.rank_path(folder, identity), found | fields)


def announced(folder: Path, ranks: int = 1, port: int = 1) -> None:
    endpoint = {"host": "127.0.0.1", "port": port, "tls": False}
    state.write(folder / state.SERVER_FILE, state.server_document(Mode.VALIDATE, [], ranks, endpoint))


def test_a_long_load_is_alive_and_not_ready(tmp_path: Path) -> None:
    announced(tmp_path)
    loading(tmp_path, age=1200)
    snapshot = status.read(tmp_path)
    assert health.check_live(snapshot)
    with pytest.raises(health.Unhealthy, match=r"tp0 is loading \(loading weights\).*wait while it loads"):
        health.check(snapshot)
    table = status_table.table(snapshot)
    assert "loading: loading weights" in table
    assert "STALE" not in table


def test_a_rank_that_died_while_loading_shows_where(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    announced(tmp_path)
    loading(tmp_path, pid=child.pid)
    snapshot = status.read(tmp_path)
    assert "loading: loading weights, DEAD" in status_table.table(snapshot)
    with pytest.raises(health.Unhealthy, match="has ended"):
        health.check_live(snapshot)


def test_the_table_names_no_phase_of_a_rank_that_is_ready(tmp_path: Path) -> None:
    announced(tmp_path)
    loading(tmp_path, state="serving", phase="ready")
    assert ": ready" not in status_table.table(status.read(tmp_path))


# ---- how much was read

READER = """
import mmap, sys, time
kept = []
for line in sys.stdin:
    how, path = line.split()
    if how == "read":
        open(path, "rb").read()
    elif how == "map":
        with open(path, "rb") as file:
            kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    else:
        kept.pop(0).close()
    print("done", flush=True)
"""


@pytest.fixture
def reader() -> Any:
    """A process that reads, maps and lets go of files when told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin
    assert process.stdout

    def does(how: str, path: Path) -> None:
        process.stdin.write(f"{how} {path}\n")
        assert process.stdout.readline() == "done\n"

    does("read", Path(__file__))  # its imports are over
    yield SimpleNamespace(pid=process.pid, does=does)
    process.stdin.close()
    process.wait()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Four megabytes in two files, as Hugging Face's cache has them: links to files of other names."""
    found = []
    for number in range(2):
        blob = tmp_path / f"blob {number}"
        blob.write_bytes(os.urandom(2 * MEGABYTE))
        found.append(tmp_path / f"model-{number}.safetensors")
        found[-1].symlink_to(blob)
    return found


def test_files_that_are_mapped_count_by_half_and_then_whole(reader: Any, files: list[Path]) -> None:
    reading = Reading(reader.pid, files)
    assert reading.look() < 64 << 10
    expected = [("map", 0, 1), ("drop", 0, 2), ("map", 1, 3), ("drop", 1, 4)]
    for how, number, megabytes in expected:
        reader.does(how, files[number])
        assert reading.look() == pytest.approx(megabytes * MEGABYTE, abs=64 << 10)


def test_files_that_are_read_count_by_their_bytes(reader: Any, files: list[Path]) -> None:
    reading = Reading(reader.pid, files)
    for number in range(2):
        reader.does("read", files[number])
        assert reading.look() == pytest.approx(2 * MEGABYTE * (number + 1), abs=64 << 10)
    reader.does("read", files[0])
    assert reading.look() == 4 * MEGABYTE  # never more than there is


def test_a_process_that_is_gone_reads_nothing(files: list[Path]) -> None:
    assert Reading(2**22 + 1, files).look() == 0


def test_it_is_told_as_about(reader: Any, files: list[Path], tmp_path: Path) -> None:
    load = Loading(Plan(given=True, known=True, model=str(tmp_path)), {})
    assert load.size() == "4.2 MB"
    load.look(reader.pid)
    assert load.share() == "about 0% of 4.2 MB read"
    reader.does("read", files[0])
    load.look(reader.pid)
    assert load.share() in ("about 50% of 4.2 MB read", "about 51% of 4.2 MB read")
    reader.does("read", files[1])
    load.look(reader.pid)
    assert load.share() == "about 99% of 4.2 MB read"  # that it is done, only the next phase says


def test_a_size_that_is_not_known_is_looked_for_again(reader: Any, files: list[Path], tmp_path: Path) -> None:
    plan = Plan(given=True, known=True, model="some/model", download_dir=str(tmp_path / "hub"))
    load = Loading(plan, {})
    load.look(reader.pid)
    assert "it will be downloaded" in load.share()
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(files[0])
    assert load.share() == "about 0% of 2.1 MB read"


# ---- what the launcher tells


class Told:
    """A watch whose lines are kept, on a state folder."""

    def __init__(self, folder: Path, every: float = 1000.0, model: Path | None = None):
        self.lines: list[str] = []
        plan = Plan(given=True, known=True, model=str(model) if model else None)
        self.watch = Watch(folder, plan, {}, time.time() - 61, every, self.lines.append)

    def look(self) -> list[str]:
        """The new lines."""
        before = len(self.lines)
        self.ended = self.watch.look()
        return self.lines[before:]


@pytest.fixture
def endpoint() -> Any:
    """An HTTP server whose answer can be changed."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer.code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    answer = SimpleNamespace(code=503)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    answer.port = server.server_port
    yield answer
    server.shutdown()
    server.server_close()


def test_each_phase_is_told_once_and_what_lasts_again(tmp_path: Path, files: list[Path], reader: Any) -> None:
    announced(tmp_path / "state")
    still = reader.pid  # this process reads while it looks
    told = Told(tmp_path / "state", every=0.0, model=tmp_path)
    assert told.look() == [
        "[1:01] no rank has started yet: SGLang imports its parts, and reads or downloads the model's configuration"
    ]
    loading(tmp_path / "state", age=30, pid=still)
    first, second, again = told.look()
    assert first.endswith("dp0-pp0-tp0: starting")
    assert second.endswith("dp0-pp0-tp0: loading weights, 4.2 MB (starting took 2.0s)")
    assert again == "[1:01] dp0-pp0-tp0: loading weights for 30s, about 0% of 4.2 MB read"
    assert told.look() == [again]
    told.watch._every = 1000.0
    assert told.look() == []


def test_the_other_ranks_are_told_of_only_where_they_are_behind(tmp_path: Path) -> None:
    announced(tmp_path, ranks=4)
    for name, phase in enumerate(["capturing graphs", "loading weights", "capturing graphs"]):
        loading(tmp_path, name, age=10, phase=phase)
    told = Told(tmp_path, every=0.0)
    lines = [line.split("] ")[1] for line in told.look()]
    assert lines == [
        "dp0-pp0-tp0: capturing graphs for 10s",
        "dp0-pp0-tp1: loading weights for 10s, behind dp0-pp0-tp0",
        "1 of 4 ranks have not started yet",
    ]


def test_ranks_report_in_any_order(tmp_path: Path) -> None:
    announced(tmp_path, ranks=2)
    loading(tmp_path, 1)
    told = Told(tmp_path)
    assert told.look() == []
    loading(tmp_path, 0)
    first, second = told.look()
    assert first.endswith("dp0-pp0-tp0: starting")
    assert "dp0-pp0-tp0: loading weights" in second


def test_a_rank_that_never_reports_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdtree_verify.startup.watch.WAIT_FOR_FIRST", -1.0)
    announced(tmp_path, ranks=2)
    loading(tmp_path, 1)
    assert Told(tmp_path).look()[0].endswith("dp0-pp0-tp1: starting")


def test_ready_is_said_when_every_rank_is_and_http_answers(tmp_path: Path, endpoint: Any) -> None:
    announced(tmp_path, ranks=2, port=endpoint.port)
    loading(tmp_path)
    told = Told(tmp_path)
    told.look()
    now = time.time()
    entered = [("starting", 0), ("capturing graphs", 2), ("finishing", 5), ("capturing graphs", 6), ("ready", 10)]
    done = {"phase": "ready", "phases": [{"name": name, "since": now + at} for name, at in entered]}
    loading(tmp_path, 0, **done)
    loading(tmp_path, 1, phase="capturing graphs")
    told.look()
    assert not told.ended
    loading(tmp_path, 1, **done)
    told.watch._every = 0.0
    assert told.look()[-1].endswith("every rank is ready, HTTP does not answer yet: SGLang warms up")
    assert not told.ended
    endpoint.code = 200
    (line,) = told.look()
    spent = "starting 2.0s, capturing graphs 7.0s, finishing 1.0s"
    assert line == f"[1:01] ready after 1:01: HTTP answers, 2 ranks, mode validate ({spent})"
    assert told.ended


def test_a_start_that_failed_is_not_told_further(tmp_path: Path) -> None:
    announced(tmp_path)
    loading(tmp_path, state="failed")
    told = Told(tmp_path, every=0.0)
    assert told.look() == []
    assert told.ended


def test_before_the_launcher_has_written_sglang_is_imported(tmp_path: Path) -> None:
    told = Told(tmp_path, every=0.0)
    assert told.look() == ["[1:01] SGLang is still being imported"]
    assert not told.ended
    announced(tmp_path)
    told.look()
    (tmp_path / state.SERVER_FILE).unlink()
    assert told.look() == []
    assert told.ended


def test_a_fault_of_the_thread_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path)
    monkeypatch.setattr(told.watch, "look", lambda: 1 / 0)
    told.watch._run()
    assert told.lines == ["how far the start is cannot be told: ZeroDivisionError('division by zero')"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4s"), (42, "42s"), (99.4, "99s"), (123, "2:03"), (3723, "1:02:03"), (-1, "0.0s")]
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert clock.span(seconds) == text


def test_the_start_of_this_process_is_in_the_past_and_survives_exec() -> None:
    assert time.time() - 3600 * 24 < clock.process_start() <= time.time()
    program = "from kdtree_verify.startup.clock import process_start; print(process_start())"
    script = f"sleep 1.2; exec '{sys.executable}' -c '{program}'"
    before = time.time()
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(before, abs=1.0)


# ---- versions


def config(mode: Mode, library_dir: str) -> Config:
    return from_environment({"KDTREE_VERIFY": mode, "KDTREE_DEVICE": "cpu", "KDTREE_LIBRARY_DIR": library_dir})


def test_versions_of_an_image_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "image.json").write_text(
        '{"revision": "0123456789abcdef", "sglang_commit": "cae69be5", "x": "unknown"}'
    )
    (tmp_path / "driver").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version:  gcc 12.2.0\n"
    )
    monkeypatch.setattr(about, "IMAGE", tmp_path / "image.json")
    monkeypatch.setattr(about, "_DRIVER", tmp_path / "driver")
    line = about.line(config(Mode.OFF, "/no/such"))
    assert "(commit cae69be5)" in line
    assert line.endswith("driver 580.95.05, no kernel library (off), image revision 0123456789ab")
    assert "the kernel library is missing" in about.line(config(Mode.ON, "/no/such"))
    real = config(Mode.ON, os.environ["KDTREE_LIBRARY_DIR"])
    assert "library libkdtree_verify_host.so" in about.line(real)


def test_versions_without_an_image_or_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "IMAGE", tmp_path / "none")
    monkeypatch.setattr(about, "_DRIVER", tmp_path / "none")
    line = about.line(config(Mode.OFF, "/no/such"))
    assert "driver" not in line
    assert "image" not in line
    assert line.startswith("kdtree_verify ")
