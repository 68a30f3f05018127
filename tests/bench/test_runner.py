"""Checked before timed; what is wrong, slow, failing or too large."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.cells import Cell
from bench.contenders import Kdtree
from bench.runner import TOO_SLOW, Bench, Deadline, rotations
from bench_samples import TINY, MadeUpTimer, Other


@pytest.mark.parametrize("pool", ["bf16", "e4m3", "e5m2"])
def test_ours_is_checked_and_timed(bench: Bench, ours: Kdtree, pool: str) -> None:
    row = bench.run(replace(TINY, pool=pool, short=1), [ours])
    entry = row["times"]["kdtree"]
    assert entry["status"] == "timed"
    assert entry["us"] == 10.0
    assert entry["error"] < 4e-3


def test_a_wrong_result_of_ours_is_not_timed_and_ends_the_cell(bench: Bench, ours: Kdtree, timer: MadeUpTimer) -> None:
    wrong = Other(ours, "kdtree", us=1.0, spoil=lambda out: out[0].mul_(2))
    row = bench.run(TINY, [wrong, ours])
    assert row["times"]["kdtree"]["status"] == "wrong"
    assert len(row["times"]) == 1
    assert timer.taken == []


def test_a_result_that_changes_under_replay_is_wrong(bench: Bench, ours: Kdtree) -> None:
    launched = []

    def drift(out: torch.Tensor) -> None:
        launched.append(out)
        out[0, 0, 0] += len(launched) - 1

    entry = bench.run(TINY, [Other(ours, "kdtree", us=1.0, spoil=drift)])["times"]["kdtree"]
    assert entry["status"] == "wrong"
    assert "first launch" in entry["reason"]


def test_a_peer_that_is_wrong_or_fails_leaves_the_others(bench: Bench, ours: Kdtree) -> None:
    def fail(_: torch.Tensor) -> None:
        raise NotImplementedError("no such tile\nand more")

    peers = [
        Other(ours, "wrong", us=1.0, spoil=torch.zero_),
        Other(ours, "failing", us=1.0, spoil=fail),
        Other(ours, "right", us=15.0),
    ]
    times = bench.run(TINY, [ours, *peers])["times"]
    assert times["wrong"]["status"] == "wrong"
    assert times["failing"] == {"status": "failed", "reason": "NotImplementedError: no such tile"}
    assert times["right"]["us"] == 15.0


def test_a_peer_far_slower_is_timed_once(bench: Bench, ours: Kdtree) -> None:
    slow, less = 10.0 * TOO_SLOW + 1, 10.0 * TOO_SLOW - 1
    times = bench.run(TINY, [ours, Other(ours, "slow", us=slow), Other(ours, "less", us=less)])["times"]
    assert (times["slow"]["how"], times["less"]["how"]) == ("once", "graph")


def test_what_does_not_fit_is_skipped_with_the_reason(bench: Bench, ours: Kdtree) -> None:
    row = replace(bench, memory=1 << 20).run(TINY, [ours])
    assert row["skipped"].startswith("needs ")
    assert row["times"] == {}


def test_a_refilled_graph_gives_the_shorter_calls_result(bench: Bench, ours: Kdtree) -> None:
    long = Cell(1, 3, 4, 64)
    row = bench.run_refilled(long, replace(long, prefix=20), ours)
    assert row["times"]["kdtree"]["status"] == "timed"
    assert (row["prefix"], row["captured"]) == (20, long.key)


def test_inputs_take_turns_until_they_exceed_the_cache() -> None:
    assert rotations(Cell(1, 8, 16, 128 << 10), 400 << 20) == 3
    assert rotations(Cell(1, 8, 1, 0), 400 << 20) == 24
    assert rotations(Cell(32, 16, 64, 256 << 10), 400 << 20) == 1


def test_a_deadline_passes() -> None:
    now = 5.0
    deadline = Deadline(10.0, clock=lambda: now)
    assert not deadline.passed()
    now = 15.0
    assert deadline.passed()
