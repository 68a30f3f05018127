"""What a rank tells: its state file, its lines in the log, and how a reader can rely on them."""

from __future__ import annotations

import json
import logging
import os
import threading
import time

import pytest
import torch

from kdtree_verify.config import Mode
from kdtree_verify.errors import UsageError
from kdtree_verify.evidence import follower
from kdtree_verify.native.abi import LayerRecord
from kdtree_verify.rank import records, report, reporter
from kdtree_verify.rank.apart import Apart
from kdtree_verify.rank.eligibility import Reason
from kdtree_verify.rank.records import Model, Records
from kdtree_verify.reporting import state
from kdtree_verify.reporting.state import Identity, State, Verdict

CPU = torch.device("cpu")


def write_record(place: records.Place, **values: float) -> None:
    """What the device does to a layer's record."""
    record = LayerRecord.from_address(place.record)
    for name, value in values.items():
        setattr(record, name, value)


def test_records_are_read_where_the_device_wrote() -> None:
    found = Records(CPU)
    write_record(found.layer(Model.DRAFT, 0), kernel_calls=1)
    write_record(found.layer(Model.TARGET, 5), kernel_calls=7, sum_sq_diff=1.0, sum_sq_stock=4.0)
    write_record(found.layer(Model.TARGET, 3), kernel_calls=6)
    assert found.layer(Model.TARGET, 5) == found.layer(Model.TARGET, 5)
    shown = [(f.model, f.layer, f.kernel_calls, f.rel_l2) for f in found.layers()]
    assert shown == [(Model.TARGET, 3, 6, 0.0), (Model.TARGET, 5, 7, 0.5), (Model.DRAFT, 0, 1, 0.0)]


def test_every_decline_has_a_counter_of_its_own() -> None:
    found = Records(CPU)
    places = {found.decline(model, reason).record for model in Model for reason in Reason}
    assert len(places) == len(Model) * len(Reason)
    before = found.image()
    found._counters[len(found._counters) - 1] = 3
    assert found.image() != before
    assert found.declined(Model.DRAFT) == {list(Reason)[-1]: 3}
    assert found.declined(Model.TARGET) == {}


def test_a_file_is_replaced_whole(tmp_path) -> None:
    path = tmp_path / "deep" / "rank-x.json"
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            state.write(path, {"values": [time.time()] * 2000})

    state.write(path, {"values": []})
    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(200):
            assert len(set(json.loads(path.read_text())["values"])) <= 1
    finally:
        stop.set()
        writer.join()
    assert [entry.name for entry in path.parent.iterdir()] == ["rank-x.json"]


def test_prepare_removes_what_an_earlier_server_left(tmp_path) -> None:
    for name in ("server.json", "rank-dp0-pp0-tp0.json", "rank-pid7.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    state.prepare(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(UsageError, match="the state folder cannot be written"):
        state.prepare(tmp_path / "notes.txt")


def test_the_first_failure_is_told(tmp_path) -> None:
    assert state.first_failure(tmp_path) is None
    for tp, when, code in ((0, 2.0, 78), (1, 1.0, 70), (2, 0.5, None)):
        document = {"updated_at": when, "reason": f"rank {tp}", "exit_code": code}
        (tmp_path / f"rank-dp0-pp0-tp{tp}.json").write_text(json.dumps(document))
    (tmp_path / "rank-broken.json").write_text("{")
    assert state.first_failure(tmp_path) == ("rank 1", 70)


def test_identities() -> None:
    assert Identity(tp=3, pp=1, dp=2, pid=9).name == "dp2-pp1-tp3"
    assert Identity(0, 0, 0, pid=9, known=False).name == "pid9"


def test_a_rank_without_figures_has_every_field() -> None:
    off = state.rank_document(Mode.OFF, Identity(0, 0, 0, 1), Verdict(State.OFF))
    assert (off["state"], off["mode"], off["counters"], off["layers"]) == ("off", "off", None, [])
    assert off["exit_code"] is None
    json.dumps(off)


@pytest.fixture
def validating(arm, tmp_path):
    from rig import Rig

    process = arm("validate")
    Rig()
    return process, tmp_path


def test_the_thread_keeps_the_file_up_to_date(arm, tmp_path, monkeypatch, caplog) -> None:
    from rig import Rig

    monkeypatch.setattr(reporter, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(reporter, "WRITE_EVERY", 0.05)
    caplog.set_level(logging.INFO, logger="kdtree_verify")
    process = arm("validate", log_interval=0.1)
    rig = Rig()
    (path,) = tmp_path.glob("rank-*.json")
    assert json.loads(path.read_text())["state"] == "armed"
    rig.run(rig.step())
    _until(lambda: json.loads(path.read_text())["state"] == "serving")
    assert json.loads(path.read_text())["counters"]["kernel_calls"] == 1
    _until(lambda: "validate: serving; 1 kernel calls" in caplog.text)

    write_record(process.rank.records.layer(Model.TARGET, 0), exceeded_calls=2, worst_rel_l2=0.5, compare_calls=4)
    _until(lambda: "layer 0 left its bound" in caplog.text)
    (line,) = [r.getMessage() for r in caplog.records if "left its bound" in r.getMessage()]
    assert "5.00e-01" in line
    assert "in 2 of 4 calls" in line


def test_the_document_says_since_when(validating) -> None:
    process, folder = validating
    (path,) = folder.glob("rank-*.json")
    armed = json.loads(path.read_text())
    assert armed["started_at"] == armed["state_since"] <= armed["updated_at"] <= time.time()
    time.sleep(0.02)
    write_record(process.rank.records.layer(Model.TARGET, 0), kernel_calls=1)
    assert process.rank.verdict().state is State.SERVING
    serving = process.rank.state_since
    process.rank._failed("launch")
    failed = json.loads(path.read_text())
    assert failed["started_at"] == armed["started_at"] < serving <= failed["state_since"]
    write_record(process.rank.records.layer(Model.TARGET, 0), kernel_calls=2)
    assert process.rank.verdict().state is State.FAILED
    assert process.rank.state_since == failed["state_since"]


def test_a_follower_that_fails_is_left_out(validating, caplog, monkeypatch) -> None:
    process, folder = validating
    monkeypatch.setattr(reporter, "LOOK_EVERY", 0.02)
    looks = {"good": 0, "bad": 0}

    def good() -> None:
        looks["good"] += 1

    def bad() -> None:
        looks["bad"] += 1
        raise OSError("no space")

    reporter.Reporter(process.rank, folder / "rank-x.json", dict, 60.0, [bad, good]).start()
    _until(lambda: looks["good"] > 3)
    assert looks["bad"] == 1
    assert caplog.text.count("is left out from now on") == 1


def test_a_follower_that_hangs_does_not_silence_the_rank(validating, caplog, monkeypatch) -> None:
    """The evidence's folder may lie on a network. A rank that does not report is restarted."""
    process, folder = validating
    monkeypatch.setattr(reporter, "LOOK_EVERY", 0.02)
    let_go, looks = threading.Event(), {"hung": 0, "good": 0}

    def hangs() -> None:
        looks["hung"] += 1
        let_go.wait()
        raise OSError("no such server")

    def good() -> None:
        looks["good"] += 1

    reporter.Reporter(process.rank, folder / "rank-x.json", dict, 60.0, [Apart(hangs, "hangs"), good]).start()
    _until(lambda: looks["good"] > 5)
    assert looks["hung"] == 1
    let_go.set()
    _until(lambda: "no such server" in caplog.text)
    assert looks["hung"] == 1
    assert caplog.text.count("is left out from now on") == 1


def test_the_evidence_is_such_a_follower(validating, monkeypatch) -> None:
    """Of the real rank: its evidence hangs in a write, and its state file is written all the same."""
    process, _ = validating
    let_go, hung, written = threading.Event(), threading.Event(), []
    monkeypatch.setattr(follower.Follower, "_write", lambda *_, ended: (hung.set(), let_go.wait()))
    monkeypatch.setattr(follower, "LOOK_EVERY", 0.0)
    _until(hung.is_set)
    monkeypatch.setattr(state, "write", lambda *_: written.append(time.monotonic()))
    write_record(process.rank.records.layer(Model.TARGET, 0), kernel_calls=1)
    _until(lambda: written)
    let_go.set()


def test_a_folder_that_is_gone_does_not_end_the_server(validating, caplog, monkeypatch) -> None:
    process, folder = validating
    talk = reporter.Reporter(process.rank, folder / "rank-x.json", dict, 60.0)

    def full(path, document):
        raise OSError("no space")

    monkeypatch.setattr(state, "write", full)
    talk.write()
    talk.write()
    assert caplog.text.count("the state file cannot be written: no space") == 1


def test_a_failure_is_written_at_once(validating) -> None:
    process, folder = validating
    process.rank._failed("kdtree_verify: refused")
    (path,) = folder.glob("rank-*.json")
    document = json.loads(path.read_text())
    assert (document["state"], document["reason"]) == ("failed", "kdtree_verify: refused")
    assert document["pid"] == os.getpid()


def test_the_document_says_what_the_rank_was_armed_with(arm, tmp_path) -> None:
    from rig import Rig

    process = arm("on", sample_every=3)
    rig = Rig(heads=4, draft_tokens=8, fp8_pool=torch.float8_e5m2)
    (path,) = tmp_path.glob("rank-*.json")
    before = json.loads(path.read_text())
    assert (before["heads"], before["draft_tokens"], before["pool_dtype"]) == (4, 8, None)
    assert before["bound"] == {"bf16": 0.02, "f32": 0.02, "fp8_e4m3": 0.2, "fp8_e5m2": 0.4}
    assert before["sampled"] == {"every": 3, "calls": 0, "exceeded_calls": 0}
    rig.run(rig.step())
    process.rank._failed("so that it is written")
    assert json.loads(path.read_text())["pool_dtype"] == "fp8_e5m2"


def test_lines_name_the_worst_layer(validating) -> None:
    process, _ = validating
    for layer, worst in ((0, 0.001), (7, 0.004)):
        place = process.rank.records.layer(Model.TARGET, layer)
        write_record(place, kernel_calls=5, compare_calls=5, worst_rel_l2=worst, max_abs=worst, nonfinite=1)
    line = report.line(process.rank)
    assert "10 kernel calls in 2 layers" in line
    assert "worst relative L2 4.00e-03 (layer 7)" in line
    assert "NaN/Inf 2" in line


def _until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
