"""What a rank puts on /metrics: prometheus_client for real, in its multiprocess mode, so each rank is a process."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdtree_verify.metrics import publisher
from kdtree_verify.metrics.catalogue import ARMED_STATES, METRICS, RANK_LABELS, Kind
from kdtree_verify.native.abi import LayerRecord
from kdtree_verify.rank import report
from kdtree_verify.rank.records import Model
from kdtree_verify.reporting import state

# Publishes the documents of its arguments, one after the other, as a rank does.
PUBLISH = """
import json, os, sys
from pathlib import Path
from kdtree_verify.metrics import publisher
series = publisher.Series(Path(os.environ[publisher.FOLDER]))
for path in sys.argv[1:]:
    series.publish(json.loads(Path(path).read_text()))
"""
# What SGLang's HTTP server does at a scrape.
SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""
SHAPE = {"prefix_below": 1024, "batch_from": 1, "batch_below": 2, "calls": 9, "exceeded_calls": 0, "nonfinite": 0}
SHAPE |= {"worst_rel_l2": 0.1, "mean_rel_l2": 0.1}


def python(program: str, folder: Path, *arguments: Path) -> str:
    environment = {**os.environ, publisher.FOLDER: str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Ranks:
    """Ranks of one server that publish and are scraped."""

    def __init__(self, folder: Path):
        self.folder = folder / "multiproc"
        self.folder.mkdir()

    def publish(self, *documents: dict[str, Any]) -> None:
        """By a process of its own, which then ends."""
        paths = []
        for number, document in enumerate(documents):
            paths.append(self.folder.parent / f"document{number}.json")
            paths[-1].write_text(json.dumps(document))
        python(PUBLISH, self.folder, *paths)

    def scrape(self) -> str:
        return python(SCRAPE, self.folder)

    def values(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Metric to label values (the rank's first, then its own) to value."""
        labels = {metric.name: (*RANK_LABELS, *metric.labels) for metric in METRICS}
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for name, text, value in re.findall(r"^(kdtree_\w+)\{(.*)\} (\S+)$", self.scrape(), re.M):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', text))
            assert set(pairs) == set(labels[name])
            found.setdefault(name, {})[tuple(pairs[label] for label in labels[name])] = float(value)
        return found


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


@pytest.fixture
def document(arm: Any) -> dict[str, Any]:
    """A rank's, made by the product: two layers and a draft's, a declined call each, times of three cells."""
    from rig import Rig

    process = arm("validate")
    Rig()
    records = process.rank.records
    figures = {"compare_calls": 5, "worst_rel_l2": 0.5, "last_rel_l2": 0.25, "nonfinite": 3, "out_of_range": 2}
    for model, layer, calls in ((Model.TARGET, 0, 5), (Model.TARGET, 10, 6), (Model.DRAFT, 0, 7)):
        record = LayerRecord.from_address(records.layer(model, layer).record)
        for name, value in (figures | {"kernel_calls": calls, "exceeded_calls": calls - 4}).items():
            setattr(record, name, value)
    for model, count in ((Model.TARGET, 2), (Model.DRAFT, 1)):
        for _ in range(count):
            process.rank.decline(model, next(iter(records._declines))[1])
    made = report.document(process.rank, state.Identity(1, 2, 3, os.getpid()), {"kind": "cuda", "name": "RTX"})
    times = [(0, 4, 9_000, 3_000), (0, 1, 1_000, 1_000), (1024, 2, 2_000_000_000, 1_000)]
    keys = ("prefix_from", "timed_calls", "stock_ns", "kernel_ns")
    made["captures"] = 4
    made["shapes"] = [SHAPE | dict(zip(keys, cell, strict=True)) for cell in times]
    made["shapes"].append(SHAPE | {"prefix_from": 4096, "timed_calls": 0, "stock_ns": 0, "kernel_ns": 0})
    return made


RANK = ("1", "2", "3")


def test_the_values_are_the_documents(ranks: Ranks, document: dict[str, Any]) -> None:
    ranks.publish(document | {"pool_dtype": "fp8_e5m2"})
    found = ranks.values()
    (info,) = found.pop("kdtree_rank_info")
    assert info[:4] == (*RANK, "validate")
    assert info[-2:] == (document["library"]["sha256"], "RTX")
    by_state = {labels[3]: value for labels, value in found.pop("kdtree_rank_state").items()}
    assert by_state == {str(s): float(s == "serving") for s in ARMED_STATES}
    assert found.pop("kdtree_rank_start_time_seconds") == {RANK: document["started_at"]}
    assert found.pop("kdtree_rank_state_start_time_seconds") == {RANK: document["state_since"]}
    assert found.pop("kdtree_rank_report_time_seconds") == {RANK: document["updated_at"]}
    assert found == {
        "kdtree_verify_calls_total": {RANK: 21},
        "kdtree_kernel_calls_total": {(*RANK, "target"): 11, (*RANK, "draft"): 7},
        "kdtree_declined_calls_total": {(*RANK, "target", "not_mla"): 2, (*RANK, "draft", "not_mla"): 1},
        "kdtree_out_of_range_total": {(*RANK, "target"): 4, (*RANK, "draft"): 2},
        "kdtree_compared_calls_total": {(*RANK, "target"): 10, (*RANK, "draft"): 5},
        "kdtree_nonfinite_values_total": {(*RANK, "target"): 6, (*RANK, "draft"): 3},
        "kdtree_exceeded_calls_total": {
            (*RANK, "target", "0"): 1,
            (*RANK, "target", "10"): 2,
            (*RANK, "draft", "0"): 3,
        },
        "kdtree_worst_relative_l2_ratio": {
            (*RANK, model, layer): 0.5 for model, layer in (("target", "0"), ("target", "10"), ("draft", "0"))
        },
        "kdtree_last_relative_l2_ratio": {
            (*RANK, model, layer): 0.25 for model, layer in (("target", "0"), ("target", "10"), ("draft", "0"))
        },
        "kdtree_relative_l2_bound_ratio": {(*RANK, "fp8_e5m2"): 0.4},
        "kdtree_timed_calls_total": {(*RANK, "0"): 5, (*RANK, "1024"): 2},
        "kdtree_stock_seconds_total": {(*RANK, "0"): 1e-5, (*RANK, "1024"): 2.0},
        "kdtree_kernel_seconds_total": {(*RANK, "0"): 4e-6, (*RANK, "1024"): 1e-6},
        "kdtree_captures_total": {RANK: 4},
    }


def test_a_rank_that_has_compared_nothing_says_nothing_of_differences(ranks: Ranks, document: dict[str, Any]) -> None:
    layers = [layer | {"compare_calls": 0} for layer in document["layers"]]
    ranks.publish(document | {"mode": "on", "layers": layers, "sampled": {"every": 8, "calls": 4, "exceeded_calls": 1}})
    found = ranks.values()
    assert not found.keys() & {"kdtree_worst_relative_l2_ratio", "kdtree_exceeded_calls_total"}
    assert "kdtree_relative_l2_bound_ratio" not in found  # the cache's dtype is not known before a call
    assert found["kdtree_sampled_calls_total"] == {RANK: 4}
    assert found["kdtree_sampled_exceeded_calls_total"] == {RANK: 1}


def test_counters_follow_and_do_not_drift(ranks: Ranks, document: dict[str, Any]) -> None:
    times = [document["shapes"][0] | {"timed_calls": n, "stock_ns": n * 100_000_001} for n in range(1, 400)]
    steps = [document | {"shapes": [cell], "counters": document["counters"] | {"verify_calls": 7}} for cell in times]
    ranks.publish(*steps, steps[-1] | {"counters": document["counters"] | {"verify_calls": 6}})
    found = ranks.values()
    assert found["kdtree_stock_seconds_total"][(*RANK, "0")] == pytest.approx(399 * 0.100000001, rel=1e-12)
    assert found["kdtree_verify_calls_total"] == {RANK: 7}  # never back


def test_every_rank_has_series_of_its_own(ranks: Ranks, document: dict[str, Any]) -> None:
    for tp in range(2):
        ranks.publish(document | {"rank": document["rank"] | {"tp": tp}})
    assert ranks.values()["kdtree_verify_calls_total"] == {("0", "2", "3"): 21, ("1", "2", "3"): 21}


def test_a_folder_that_outlives_its_server_has_the_newest_gauges(ranks: Ranks, document: dict[str, Any]) -> None:
    ranks.publish(document)
    ranks.publish(document | {"state": "failed", "started_at": 5.0})
    found = ranks.values()
    assert found["kdtree_rank_start_time_seconds"] == {RANK: 5.0}
    assert {labels[3] for labels, value in found["kdtree_rank_state"].items() if value} == {"failed"}


def test_help_and_type_are_scraped(ranks: Ranks, document: dict[str, Any]) -> None:
    ranks.publish(document | {"pool_dtype": "bf16", "sampled": {"every": 8, "calls": 4, "exceeded_calls": 1}})
    lines = ranks.scrape().splitlines()
    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.help}" in lines
        assert f"# TYPE {metric.name} {metric.kind}" in lines


def test_no_free_text_gets_out(ranks: Ranks, document: dict[str, Any]) -> None:
    """Reasons, paths and arguments may hold anything, a secret too."""
    document["reason"] = "SECRET: a traceback"
    for name in ("path", "source_hash", "compiler"):
        document["library"][name] = "SECRET"
    document["versions"]["other"] = document["device"]["uuid"] = "SECRET"
    ranks.publish(document | {"argv": ["--api-key", "SECRET"]})
    assert "SECRET" not in ranks.scrape()


def test_the_files_pages_are_there_before_they_are_written(ranks: Ranks, document: dict[str, Any]) -> None:
    ranks.publish(document)
    files = list(ranks.folder.glob("*.db"))
    assert len(files) == 2  # counters and gauges
    for path in files:
        assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_names_are_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"kdtree_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.kind is Kind.COUNTER or metric.name.endswith(("_seconds", "_ratio", "_info", "_state"))
        assert metric.help.endswith(".")
        assert all(re.fullmatch(r"[a-z0-9_]+", label) and label not in ("le", "quantile") for label in metric.labels)


# ---- where it must not be in the way


def test_without_the_flag_nothing_is_published_or_imported() -> None:
    program = (
        "import sys; from kdtree_verify import metrics; assert metrics.followers(dict) == [];"
        "print('prometheus_client' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != publisher.FOLDER}
    for more in ({}, {publisher.FOLDER: "/tmp"}):  # set by the user, of whose server SGLang says nothing
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], env=environment | more, capture_output=True, text=True
        )
        assert done.stdout == "False\n", done.stderr


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == publisher.__name__]


def warned_once(caplog: pytest.LogCaptureFixture, document: dict[str, Any]) -> str:
    made = 0

    def make() -> dict[str, Any]:
        nonlocal made
        made += 1
        return document

    follow = publisher.Publisher(make, every=0.0)
    caplog.set_level(logging.DEBUG, logger="kdtree_verify")
    for _ in range(3):
        follow()
    assert made <= 1
    (record,) = told(caplog)
    assert record.levelname == "WARNING"
    return record.getMessage()


def test_a_folder_that_is_gone_is_told_once(monkeypatch, caplog, tmp_path, document) -> None:
    monkeypatch.setenv(publisher.FOLDER, str(tmp_path / "gone"))
    assert "FileNotFoundError" in warned_once(caplog, document)


def test_no_prometheus_client_is_told_once(monkeypatch, caplog, tmp_path) -> None:
    monkeypatch.setenv(publisher.FOLDER, str(tmp_path))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert "prometheus_client" in warned_once(caplog, {})


def test_a_full_disk_is_told_once(monkeypatch, caplog, tmp_path, document) -> None:
    """Before anything is written: a write by mmap to a disk without room ends the process."""
    monkeypatch.setenv(publisher.FOLDER, str(tmp_path))
    monkeypatch.setattr(publisher, "_ROOM", 1 << 62)
    assert "MiB left" in warned_once(caplog, document)
    assert list(tmp_path.glob("*.db")) == []


def test_a_disk_that_fills_up_hinders_new_series_only(monkeypatch, caplog, tmp_path, document) -> None:
    monkeypatch.setenv(publisher.FOLDER, str(tmp_path))
    follow = publisher.Publisher(lambda: document, every=0.0)
    follow()
    monkeypatch.setattr(publisher, "_ROOM", 1 << 62)
    document["counters"]["verify_calls"] += 1
    follow()
    assert told(caplog) == []
    document["counters"]["declined"]["batch"] = 1
    follow()
    assert "MiB left" in told(caplog)[0].getMessage()


def test_a_document_of_another_form_is_told_once(monkeypatch, caplog, tmp_path, document) -> None:
    monkeypatch.setenv(publisher.FOLDER, str(tmp_path))
    del document["layers"]
    assert "KeyError('layers')" in warned_once(caplog, document)


def test_it_keeps_its_pace(monkeypatch, tmp_path) -> None:
    looks = []
    monkeypatch.setattr(publisher.Series, "__init__", lambda self, folder: None)
    monkeypatch.setattr(publisher.Series, "publish", lambda self, document: looks.append(document))
    monkeypatch.setenv(publisher.FOLDER, str(tmp_path))
    follow = publisher.Publisher(dict, every=60.0)
    for _ in range(5):
        follow()
    assert len(looks) == 1
