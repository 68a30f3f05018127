"""What a rank's process writes: when, how large, how much is kept, and what stands in nobody's way."""

from __future__ import annotations

import copy
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import made
from kdtree_verify.evidence import files, follower, history, read, server
from kdtree_verify.evidence.follower import Follower
from kdtree_verify.evidence.history import History
from kdtree_verify.reporting import state


class Clock:
    """Time as a follower sees it."""

    def __init__(self) -> None:
        self.now = made.START

    def time(self) -> float:
        return self.now

    monotonic = time


class Serving:
    """A rank whose document grows by `steps` a call of `serve`."""

    def __init__(self, layers: int = made.LAYERS) -> None:
        self.document = made.rank_document(layers=[made.layer(number, calls=0) for number in range(layers)], shapes=[])
        self.cell = made.cell(0, 1024, 0) | {"mean_rel_l2": 2e-3}

    def serve(self, steps: int = 10, rel_l2: float = 2e-3) -> None:
        for layer in self.document["layers"]:
            layer["compare_calls"] += steps
            layer["last_rel_l2"] = rel_l2
            layer["worst_rel_l2"] = max(layer["worst_rel_l2"] if layer["compare_calls"] > steps else 0.0, rel_l2)
        self.cell["calls"] += steps * len(self.document["layers"])
        self.document["shapes"] = [self.cell]

    def __call__(self) -> made.Document:
        return copy.deepcopy(self.document) | {"updated_at": time.time()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(follower, "time", found)
    return found


@pytest.fixture
def rank() -> Serving:
    return Serving()


def content(path: Path) -> made.Document:
    found: made.Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def start(tmp_path: Path, rank: Callable[[], made.Document]) -> Follower:
    return Follower(tmp_path / "evidence", tmp_path / "state", "dp0-pp0-tp0", rank)


# ---- when


def test_a_rank_that_was_armed_is_told_of_at_once(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    """So that a report after an upgrade knows of the new setup before its first call."""
    found = start(tmp_path, rank)
    assert not found.path.exists()
    found()
    assert content(found.path)["points"] == []
    assert content(found.path)["setup"]["heads"] == 20


def test_what_comes_is_written_every_thirty_seconds(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    found, written = start(tmp_path, rank), []
    for _ in range(240):  # two minutes, looked at twice a second
        found()
        rank.serve()
        clock.now += 0.5
        written.append(found.path.stat().st_mtime_ns)
    assert 3 <= len(set(written)) <= 5


def test_what_came_is_written_soon_after_the_last(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    """The end of a server is SIGKILL to its ranks: nothing is told then."""
    found = start(tmp_path, rank)
    found()
    rank.serve(7)
    for _ in range(40):
        clock.now += 0.5
        found()
    assert content(found.path)["rank"]["layers"][0]["compare_calls"] == 7
    before = found.path.stat().st_mtime_ns
    for _ in range(400):
        clock.now += 0.5
        found()
    assert found.path.stat().st_mtime_ns == before, "nothing has changed"


def test_a_state_that_changes_is_written(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    found = start(tmp_path, rank)
    found()
    rank.document.update(state="failed", reason="kdtree_verify: the CUDA runtime refused the launch")
    clock.now += 40
    found()
    assert content(found.path)["rank"]["state"] == "failed"


def test_the_end_is_told(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    found = start(tmp_path, rank)
    found()
    rank.serve(3)
    clock.now += 1
    found.close()
    assert content(found.path)["ended"] is True
    assert content(found.path)["rank"]["layers"][0]["compare_calls"] == 3


def test_a_rank_that_never_served_leaves_nothing(tmp_path: Path, rank: Serving) -> None:
    start(tmp_path, rank).close()
    assert not (tmp_path / "evidence").exists()


PROCESS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import made
from kdtree_verify.evidence.follower import Follower
found = Follower(Path(sys.argv[1]), Path(sys.argv[1]) / 'state', 'r', made.rank_document)
found()
print('up', flush=True)
if sys.argv[3] == 'wait':
    time.sleep(60)
"""


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_process_leaves_a_whole_file_however_it_ends(tmp_path: Path, ends: str) -> None:
    wait = "wait" if ends == "killed" else "end"
    command = [sys.executable, "-c", PROCESS, str(tmp_path), str(Path(__file__).parent), wait]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        if ends == "killed":
            process.send_signal(signal.SIGKILL)
    (entry,), unreadable = read.folder(tmp_path)
    assert unreadable == []
    assert entry.ended is (ends == "by itself")


# ---- what


def test_the_history_adds_up(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    found = start(tmp_path, rank)
    for index in range(600):
        found()
        rank.serve(1, rel_l2=2e-3 + (4e-3 if index == 300 else 0))
        clock.now += 5.0
    found.close()
    (entry,), _ = read.folder(tmp_path / "evidence")
    assert sum(point.calls for point in entry.points) == entry.compared == 600 * made.LAYERS
    assert max(point.worst for point in entry.points) == pytest.approx(6e-3)
    assert sum(point.worst > 3e-3 for point in entry.points) == 1, "one interval, and not all that follow"
    assert {len(point.layers) for point in entry.points} == {made.LAYERS}
    assert all(point.mean == pytest.approx(2e-3) for point in entry.points)
    assert entry.active_seconds == pytest.approx(600 * 5.0, rel=0.01)
    starts = [point.start for point in entry.points]
    assert starts == sorted(starts)


def test_time_without_calls_is_no_time(rank: Serving) -> None:
    found = History(0.0)
    rank.serve()
    assert found.look(rank(), 5.0)
    assert not found.look(rank(), 50_000.0)
    rank.serve()
    assert found.look(rank(), 50_005.0)
    assert found.active_seconds == pytest.approx(10.0)


def test_a_clock_that_is_set_is_no_time(rank: Serving) -> None:
    found = History(0.0)
    for now in (5.0, 90_000.0, 5.0, 10.0):
        rank.serve()
        assert found.look(rank(), now)
    assert found.active_seconds <= 5.0 + history.LONGEST_LOOK + 0.0 + 5.0


def test_nan_is_not_lost_in_a_merge() -> None:
    assert str(history.largest([1.0, float("nan"), 2.0, None])) == "nan"
    assert history.largest([None, None]) is None


@pytest.mark.parametrize(("layers", "looks"), [(1, 20_000), (61, 2_000), (511, 500)])
def test_a_file_stays_small_however_long_its_server_runs(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, layers: int, looks: int
) -> None:
    rank = Serving(layers)
    monkeypatch.setattr(follower, "WRITE_EVERY", 1e9)  # only the last one is looked at
    found = Follower(tmp_path, tmp_path, "r", lambda: rank.document | {"updated_at": clock.now})
    for _ in range(looks):
        rank.serve(1, rel_l2=2.34567e-3)
        clock.now += 60.0
        found()
    found.close()
    size = found.path.stat().st_size
    assert size < files.FILE_BYTES
    (entry,), _ = read.folder(tmp_path)
    assert len(entry.points) >= (32 if layers < 100 else 8)
    assert len(entry.points) <= history.MOST_POINTS + 1
    widths = [point.end - point.start for point in entry.points[:-1]]
    assert max(widths) <= 2.1 * min(widths), "as fine for the old as for the new"
    assert sum(point.calls for point in entry.points) == looks * layers, "old points are merged, none is dropped"


# ---- where


def test_a_folder_that_cannot_be_written_is_told_of_once(
    tmp_path: Path, rank: Serving, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "evidence").write_text("a file where the folder should be")
    found = start(tmp_path, rank)
    with caplog.at_level(logging.WARNING):
        for _ in range(400):
            rank.serve()
            found()
            clock.now += 0.5
    (record,) = caplog.records
    assert "what is measured does not outlive this server" in record.getMessage()
    (tmp_path / "evidence").unlink()
    clock.now += 60
    found()
    assert content(found.path)["rank"]["layers"][0]["compare_calls"] > 0, "it is tried again"


def test_servers_that_share_a_folder_do_not_share_files(tmp_path: Path, rank: Serving, clock: Clock) -> None:
    """Same host, same rank, same second: two containers with one host name."""
    both = [start(tmp_path, rank) for _ in range(2)]
    for each in both:
        each()
    entries, unreadable = read.folder(tmp_path / "evidence")
    assert len(entries) == 2
    assert unreadable == []
    assert not list((tmp_path / "evidence").glob(".*")), "an unfinished file is left"


@pytest.mark.parametrize("host", ["../../etc", "a/b", "x" * 300, "ü\n", ""])
def test_a_name_is_a_file_name(host: str) -> None:
    name, identity = files.new_name(host, "dp0-pp0-tp0", made.START)
    assert Path(name).name == name
    assert len(name) < 200
    assert Path(name).match(files.PATTERN)
    assert identity in name


# ---- for how long


def numbered(folder: Path, count: int, **changes: Any) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for index in range(count):
        made.write(folder, made.evidence(start=made.START + index) | changes)
    return files.paths(folder)


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 4)
    paths = numbered(tmp_path, 9)
    files.prune(tmp_path, paths[-1])
    assert files.paths(tmp_path) == paths[4:]


def test_what_says_nothing_goes_before_what_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in a restart loop must not push out what was measured before."""
    monkeypatch.setattr(files, "MOST_FILES", 4)
    evidence = numbered(tmp_path, 2)
    for index in range(20):
        made.write(tmp_path, made.evidence(start=made.START + 10 + index) | {"points": []})
    files.prune(tmp_path, files.paths(tmp_path)[-1])
    assert set(evidence) <= set(files.paths(tmp_path))
    assert len(files.paths(tmp_path)) == 5


def test_no_more_bytes_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = numbered(tmp_path, 6)
    size = paths[0].stat().st_size
    monkeypatch.setattr(files, "MOST_BYTES", 3 * size + 10)
    files.prune(tmp_path, paths[-1])
    assert sum(path.stat().st_size for path in files.paths(tmp_path)) <= 4 * size + 10


def test_other_peoples_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 0)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "captures").mkdir()
    (paths,) = [numbered(tmp_path, 2)]
    files.prune(tmp_path, paths[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["captures", "notes.txt", paths[-1].name]


def test_what_a_killed_process_left_unfinished_goes_after_an_hour(tmp_path: Path) -> None:
    old, new = tmp_path / ".run-1.json.77", tmp_path / ".run-2.json.78"
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (time.time() - 7200,) * 2)
    files.prune(tmp_path, tmp_path / "run-3.json")
    assert [path.name for path in tmp_path.iterdir()] == [new.name]


# ---- whose


def test_a_server_is_its_launchers(tmp_path: Path) -> None:
    # This process is a child of pytest's parent; the launcher is any ancestor.
    document = state.server_document(state.Mode.VALIDATE, ["--model-path", "m/x", "--tp-size", "4"], 4)
    state.write(tmp_path / "server.json", document | {"pid": os.getppid(), "started_at": 7.0})
    found = server.of_this_process(tmp_path)
    assert (found.expected_ranks, found.model) == (4, "m/x")
    assert found == server.of_this_process(tmp_path)


@pytest.mark.parametrize(
    ("told", "model"),
    [
        ({"revision": None, "load_format": "auto", "json_model_override_args": "{}"}, "m"),
        (
            {"revision": "v2", "load_format": "dummy", "json_model_override_args": "{}"},
            "m (revision v2, load format dummy)",
        ),
        (
            {"revision": None, "load_format": "auto", "json_model_override_args": '{"num_hidden_layers": 1}'},
            "m (overrides f864da121ccd)",
        ),
        ({}, "m"),
    ],
)
def test_weights_that_are_loaded_otherwise_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str | None], model: str
) -> None:
    document = state.server_document(state.Mode.VALIDATE, ["--model-path", "m"], 1) | {"pid": os.getppid()}
    state.write(tmp_path / "server.json", document)
    settings = SimpleNamespace(get_server_args=lambda: SimpleNamespace(**told))
    monkeypatch.setitem(sys.modules, server._SGLANGS, settings)
    assert server.of_this_process(tmp_path).model == model


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"pid": 999999999, "started_at": 1, "expected_ranks": 8}',
        '{"pid": %d, "started_at": null, "expected_ranks": 8}',
    ],
)
def test_another_servers_file_is_not_taken_for_ones_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text.replace("%d", str(os.getppid())))
    found = server.of_this_process(tmp_path)
    assert found.expected_ranks is None
    assert found == server.of_this_process(tmp_path), "all ranks of one parent have one name for it"


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["--model-path", "a"], "a"),
        (["--tp-size", "2", "--model-path=b/c=d"], "b/c=d"),
        (["--model", "e"], "e"),
        (["--model-path"], None),
        (["--model-path", "a", "--model-path", "b"], "b"),
        (["--model-pa", "a", "--model-loader-extra-config", "{}"], "a"),
    ],
)
def test_a_model_is_found_in_the_arguments(tmp_path: Path, arguments: list[str], model: str | None) -> None:
    document = state.server_document(state.Mode.VALIDATE, arguments, 1) | {"pid": os.getppid()}
    state.write(tmp_path / "server.json", document)
    assert server.of_this_process(tmp_path).model == model
