"""The verdict says yes only where everything speaks for it: each criterion by itself takes the yes away."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import made
from kdtree_verify import versions
from kdtree_verify.config import Config, from_environment
from kdtree_verify.verdict import command, thresholds
from kdtree_verify.verdict.document import Report
from kdtree_verify.verdict.judge import Status, Verdict

Change = Callable[[made.Document], Any]
LAYERS = range(made.LAYERS)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Of a machine on which what was measured is installed, as far as versions go, and no library."""
    monkeypatch.setattr("kdtree_verify.verdict.installed.versions", lambda: made.rank_document()["versions"])
    return from_environment({"KDTREE_LIBRARY_DIR": str(tmp_path / "none")})


@pytest.fixture
def report(tmp_path: Path, config: Config) -> Callable[..., Report]:
    return lambda *documents: command.make(made.write(tmp_path / "evidence", *documents), config)


def status(report: Report, name: str) -> Status:
    (found,) = [criterion for criterion in report.criteria if criterion.name == name]
    assert found.found
    assert found.wanted
    return found.status


def each_layer(document: made.Document, **values: Any) -> None:
    for layer in document["rank"]["layers"]:
        layer.update(values)


def fewer_calls(document: made.Document) -> None:
    document["rank"]["layers"][3]["compare_calls"] = thresholds.CALLS_PER_LAYER - 1


def short_prefixes(document: made.Document) -> None:
    document["rank"]["shapes"] = [made.cell(0, 1024, made.STEPS * 3), made.cell(1024, 2048, made.STEPS * 3)]


def thin_shapes(document: made.Document) -> None:
    # 3% of the calls, in cells of batches that hardly ever occurred.
    document["rank"]["shapes"] += [
        made.cell(start, start * 2, 1700, batch) for start in (1024, 2048) for batch in ((2, 4), (4, 8))
    ]


def uncounted_shapes(document: made.Document) -> None:
    document["rank"]["shapes"] = [made.cell(start, below, steps * 5) for start, below, steps in made.CELLS]


MISSING: dict[str, tuple[str, Change]] = {
    "capability 9.0": ("card", lambda d: d["setup"].update(compute_capability="9.0")),
    "no capability": ("card", lambda d: d["setup"].update(compute_capability=None)),
    "host library": ("card", lambda d: d["setup"].update(library_kind="host")),
    "another KDTree": ("installation", lambda d: d["setup"].update(kdtree_verify="0.0.9")),
    **{
        f"{name} unknown": ("installation", lambda d, name=name: d["setup"].update({name: None}))
        for name in ("model", "library", "sources", "torch", "heads", "draft_tokens", "dp_size")
    },
    "another SGLang": ("installation", lambda d: d["setup"].update(sglang="0.5.20")),
    "a rank is missing": ("ranks", lambda d: d["server"].update(expected_ranks=2)),
    "no rank expected": ("ranks", lambda d: d["server"].update(expected_ranks=0)),
    "without the launcher": (
        "ranks",
        lambda d: (d["server"].update(expected_ranks=None), d["setup"].update(tp_size=None)),
    ),
    "without the launcher, TP 2": (
        "ranks",
        lambda d: (d["server"].update(expected_ranks=None), d["setup"].update(tp_size=2)),
    ),
    "without the launcher, DP 2": (
        "ranks",
        lambda d: (d["server"].update(expected_ranks=None), d["setup"].update(dp_size=2)),
    ),
    "idle": ("state", lambda d: d["rank"].update(state="armed, not serving", reason="a captured graph runs stock")),
    "an unknown state": ("state", lambda d: d["rank"].update(state="dreaming")),
    "no layers": ("layers", lambda d: d["rank"].update(layers=[])),
    "too few calls": ("calls", fewer_calls),
    "too short": ("time", lambda d: d.update(active_seconds=thresholds.ACTIVE_SECONDS - 1)),
    "short prefixes": ("prefixes", short_prefixes),
    "no shapes": ("prefixes", lambda d: d["rank"].update(shapes=[])),
    "thin shapes": ("shapes", thin_shapes),
    "calls in no shape": ("shapes", uncounted_shapes),
    "declined": ("declined", lambda d: d["rank"]["counters"].update(declined={"batch": 500})),
    "no yardstick": ("float64", lambda d: d["rank"].update(yardstick=None)),
    "no pool": ("bound", lambda d: d["setup"].update(pool_dtype=None)),
}
FAILED: dict[str, tuple[str, Change]] = {
    "failed": ("state", lambda d: d["rank"].update(state="failed", reason="kdtree_compare: …")),
    "one call beyond": ("bound", lambda d: d["rank"]["layers"][2].update(exceeded_calls=1)),
    "one call beyond, by cells": ("bound", lambda d: d["rank"]["shapes"][2].update(exceeded_calls=1)),
    "beyond, uncounted": ("bound", lambda d: d["rank"]["layers"][2].update(worst_rel_l2=0.0201)),
    "beyond, by cells": ("bound", lambda d: d["rank"]["shapes"][0].update(worst_rel_l2=0.0201)),
    "worst is NaN": ("bound", lambda d: d["rank"]["layers"][0].update(worst_rel_l2=math.nan)),
    "one call beyond, by the history": ("bound", lambda d: d["points"][3].update(exceeded=1)),
    "beyond, by the history": ("bound", lambda d: d["points"][3].update(worst=0.0201)),
    "sampled": (
        "bound",
        lambda d: d["rank"].update(mode="on", sampled={"every": 64, "calls": 10, "exceeded_calls": 1}),
    ),
    "no number": ("NaN or Inf", lambda d: d["rank"]["layers"][5].update(nonfinite=1)),
    "no number, by cells": ("NaN or Inf", lambda d: d["rank"]["shapes"][0].update(nonfinite=1)),
    "out of range": ("indices", lambda d: d["rank"]["counters"].update(out_of_range=1)),
    "out of range, by layers": ("indices", lambda d: d["rank"]["layers"][0].update(out_of_range=1)),
    "launch failed": ("declined", lambda d: d["rank"]["counters"].update(declined={"launch_failed": 1})),
    "further than stock": ("float64", lambda d: d["rank"]["yardstick"].update(kernel_rel_l2=3.64e-3)),
    "yardstick is NaN": ("float64", lambda d: d["rank"]["yardstick"].update(kernel_rel_l2=math.nan)),
    "unexplained": ("explained", lambda d: d["rank"]["layers"][4].update(rel_l2=0.0144)),
    "unexplained, NaN": ("explained", lambda d: d["rank"]["layers"][4].update(rel_l2=math.nan)),
}


def test_with_everything_it_is_justified(report: Callable[..., Report]) -> None:
    found = report(made.evidence())
    assert [c for c in found.criteria if c.status is not Status.MET] == []
    assert found.verdict is Verdict.JUSTIFIED
    assert found.limits == ["prefixes of 4K tokens and more", "batches of 2 requests and more"]


@pytest.mark.parametrize("case", MISSING)
def test_each_lack_by_itself_is_not_yet(report: Callable[..., Report], case: str) -> None:
    name, change = MISSING[case]
    document = made.evidence()
    change(document)
    found = report(document)
    assert status(found, name) is Status.MISSING
    assert found.verdict is Verdict.NOT_YET


@pytest.mark.parametrize("case", FAILED)
def test_each_defect_by_itself_is_no(report: Callable[..., Report], case: str) -> None:
    name, change = FAILED[case]
    document = made.evidence()
    change(document)
    found = report(document)
    assert status(found, name) is Status.FAILED
    assert found.verdict is Verdict.NO


def test_every_criterion_was_taken_away(report: Callable[..., Report]) -> None:
    taken = {name for name, _ in [*MISSING.values(), *FAILED.values()]}
    assert taken == {criterion.name for criterion in report(made.evidence()).criteria}


def test_no_outweighs_not_yet(report: Callable[..., Report]) -> None:
    document = made.changed(made.evidence(), rank__layers__0__nonfinite=1, active_seconds=1.0)
    assert report(document).verdict is Verdict.NO


def test_a_few_declined_calls_of_the_start_are_no_lack(report: Callable[..., Report]) -> None:
    document = made.changed(made.evidence(), rank__counters__declined={"batch": 12, "draft:q_dtype": 9_999})
    assert report(document).verdict is Verdict.JUSTIFIED


@pytest.mark.parametrize(("change", "verdict"), [({}, Verdict.JUSTIFIED), ({"nonfinite": 1}, Verdict.NO)])
def test_a_drafts_layer_may_be_thin_and_must_be_right(
    report: Callable[..., Report], change: dict[str, int], verdict: Verdict
) -> None:
    document = made.evidence()
    document["rank"]["layers"].append(made.layer(0, "draft", calls=100) | change)
    assert report(document).verdict is verdict


def test_only_a_drafts_layers_are_no_evidence(report: Callable[..., Report]) -> None:
    document = made.evidence(layers=[made.layer(number, "draft") for number in LAYERS])
    assert status(report(document), "calls") is Status.MISSING


def test_a_bound_of_its_own_for_each_cache(report: Callable[..., Report]) -> None:
    document = made.evidence(pool_dtype="fp8_e4m3", yardstick={"stock_rel_l2": 0.03, "kernel_rel_l2": 2e-3, "case": ""})
    each_layer(document, worst_rel_l2=0.15, rel_l2=0.03)
    found = report(document)
    assert found.verdict is Verdict.JUSTIFIED
    assert found.evidence.bound == 0.2


# ---- more than one run, more than one rank


def halves() -> tuple[made.Document, made.Document]:
    """Two runs, neither of which is enough."""
    half = made.evidence()
    for layer in half["rank"]["layers"]:
        layer.update(compare_calls=6_000, kernel_calls=6_000)
    for cell in half["rank"]["shapes"]:
        cell.update(calls=12_000, timed_calls=12_000)
    half["active_seconds"] = 2000.0
    later = copy.deepcopy(half)
    later["id"], later["started_at"], later["server"]["run"] = "second", made.START + 9000, "box-7-1796009000"
    return half, later


def test_runs_of_one_setup_add_up(report: Callable[..., Report]) -> None:
    first, second = halves()
    assert report(first).verdict is Verdict.NOT_YET
    found = report(second)
    assert found.verdict is Verdict.JUSTIFIED
    assert {layer.compare_calls for layer in found.evidence.layers()} == {12_000}


@pytest.mark.parametrize(
    "field", ["model", "kdtree_verify", "sglang", "torch", "cuda", "library", "sources", "device", "pool_dtype"]
)
def test_a_run_of_another_setup_does_not_count(report: Callable[..., Report], field: str) -> None:
    first, second = halves()
    first["setup"][field] = "other"
    found = report(first, second)
    assert found.verdict is Verdict.NOT_YET
    (left,) = found.evidence.not_counted
    assert left.why.startswith("another ")
    assert "(other, not " in left.why


@pytest.mark.parametrize("field", ["tp_size", "pp_size", "dp_size", "heads", "draft_tokens"])
def test_a_run_of_another_size_does_not_count(report: Callable[..., Report], field: str) -> None:
    first, second = halves()
    first["setup"][field] = 99
    assert report(first, second).verdict is Verdict.NOT_YET


def test_a_new_setup_starts_at_nothing(report: Callable[..., Report]) -> None:
    """After an upgrade: the new server has made no call, and the old one's yes is not its."""
    new = made.changed(made.evidence(start=made.START + 9000, run="new"), setup__library="77" * 32)
    new["rank"].update(layers=[], shapes=[], state="armed", pool_dtype=None)
    new["setup"]["pool_dtype"] = None
    found = report(made.evidence(), new)
    assert found.verdict is Verdict.NOT_YET
    assert len(found.evidence.not_counted) == 1


def test_a_server_that_just_started_again_keeps_what_was_measured(report: Callable[..., Report]) -> None:
    new = made.evidence(start=made.START + 9000, run="new", layers=[], shapes=[], state="armed", pool_dtype=None)
    new.update(active_seconds=0.0, points=[], layers=[])
    found = report(made.evidence(), new)
    assert found.verdict is Verdict.JUSTIFIED
    assert len(found.evidence.entries) == 2


def test_an_older_failure_is_not_forgotten(report: Callable[..., Report]) -> None:
    old = made.changed(made.evidence(), rank__layers__1__exceeded_calls=1)
    found = report(old, made.evidence(start=made.START + 9000, run="new"))
    assert found.verdict is Verdict.NO


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_no_number_is_the_worst_of_all_runs(report: Callable[..., Report], first: int) -> None:
    runs = [made.evidence(), made.changed(made.evidence(), rank__layers__1__worst_rel_l2=math.nan)]
    for run, start in zip(runs if first else reversed(runs), (0, 9000), strict=True):
        run["started_at"] += start
    assert status(report(*runs), "bound") is Status.FAILED


def two_ranks(**changes: Any) -> list[made.Document]:
    documents = [made.evidence(tp) for tp in range(2)]
    for document in documents:
        document["server"]["expected_ranks"] = document["setup"]["tp_size"] = 2
    return [documents[0], made.changed(documents[1], **changes)]


def test_every_rank_is_asked(report: Callable[..., Report]) -> None:
    assert report(*two_ranks()).verdict is Verdict.JUSTIFIED


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("layers", {"rank__layers": [made.layer(n) for n in LAYERS if n != 4]}),
        ("calls", {"rank__layers__4__compare_calls": 9_999}),
        ("time", {"active_seconds": 10.0}),
        ("declined", {"rank__counters__declined": {"batch": 500}}),
        ("state", {"rank__state": "armed, not serving"}),
        ("float64", {"rank__yardstick": None}),
    ],
)
def test_one_rank_that_lacks_something_is_enough(report: Callable[..., Report], name: str, changes: Any) -> None:
    found = report(*two_ranks(**changes))
    assert status(found, name) is Status.MISSING
    assert found.verdict is Verdict.NOT_YET


@pytest.mark.parametrize("run", ["box-7-1796000000", "earlier"])
def test_a_layer_that_is_off_in_one_rank_or_run_is_not_averaged_away(report: Callable[..., Report], run: str) -> None:
    off = two_ranks(rank__layers__2__rel_l2=0.0185, rank__layers__2__worst_rel_l2=0.0195, server__run=run)
    right = [made.evidence(tp, start=made.START + 9000 * tp, run=f"later {tp}") for tp in range(2)]
    for document in right:
        document["server"]["expected_ranks"] = document["setup"]["tp_size"] = 2
    found = report(*off, *right)
    assert status(found, "explained") is Status.FAILED
    assert found.verdict is Verdict.NO
    (criterion,) = [c for c in found.criteria if c.name == "explained"]
    assert "layer 2 of dp0-pp0-tp1 in run-" in criterion.found


def test_one_rank_in_each_of_two_runs_is_not_two_ranks(report: Callable[..., Report]) -> None:
    """Where SGLang has not named them, ranks are called by their pids."""
    first, second = two_ranks(server__run="another")
    first["rank"]["rank"]["name"], second["rank"]["rank"]["name"] = "pid100", "pid200"
    found = report(first, second)
    assert status(found, "ranks") is Status.MISSING
    assert found.verdict is Verdict.NOT_YET


def test_what_a_wrong_clock_dates_into_the_future_is_not_the_newest_for_ever(report: Callable[..., Report]) -> None:
    ahead = made.changed(made.evidence(start=time.time() + 1e7, run="ahead"), setup__model="another")
    found = report(ahead, made.evidence(start=time.time() - 9000))
    assert found.evidence.setup.model == "zai-org/GLM-4.7-Flash"
    same = made.changed(made.evidence(start=time.time() + 1e7, run="same"), rank__layers__0__nonfinite=1)
    assert report(same).verdict is Verdict.NO


def test_pipeline_stages_have_layers_of_their_own(report: Callable[..., Report]) -> None:
    first, second = two_ranks()
    second["rank"]["rank"].update(pp=1, name="dp0-pp1-tp0")
    for layer in second["rank"]["layers"]:
        layer["layer"] += made.LAYERS
    assert status(report(first, second), "layers") is Status.MET


def test_what_is_installed_is_looked_up(tmp_path: Path) -> None:
    """Without stand-ins: the versions of this machine are not those that were measured."""
    folder = made.write(tmp_path, made.evidence())
    found = command.make(folder, from_environment({"KDTREE_LIBRARY_DIR": str(tmp_path)}))
    (criterion,) = [c for c in found.criteria if c.name == "installation"]
    sglang = versions.versions()["sglang"]
    assert sglang is None or f"SGLang {sglang} is installed, 0.5.21 was measured" in criterion.found


def test_another_library_is_installed(tmp_path: Path, config: Config, report: Callable[..., Report]) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "libkdtree_verify_cuda.so").write_bytes(b"another")
    found = report(made.evidence())
    assert status(found, "installation") is Status.MISSING
    assert found.verdict is Verdict.NOT_YET


# ---- what a step would save


def test_the_estimate_is_a_layers_times_the_layers(report: Callable[..., Report]) -> None:
    times = report(made.evidence()).times
    assert (times[0].stock_us, times[0].kernel_us) == (60.0, 14.0)
    assert times[0].saved_ms == pytest.approx((60.0 - 14.0) * made.LAYERS / 1e3)


def test_nothing_is_estimated_from_the_host_library(report: Callable[..., Report]) -> None:
    document = made.evidence()
    document["setup"]["library_kind"] = "host"
    assert report(document).times == []


def test_nothing_is_estimated_where_nothing_was_timed(report: Callable[..., Report]) -> None:
    document = made.evidence()
    for cell in document["rank"]["shapes"]:
        cell.update(timed_calls=0, stock_ns=0, kernel_ns=0)
    assert report(document).times == []
