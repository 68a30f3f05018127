"""`on` with KDTREE_SAMPLE: some calls are computed by stock as well, and the answers are ours all the same."""

from __future__ import annotations

import logging

import pytest
import torch

from kdtree_verify.rank import kernel, report, reporter
from kdtree_verify.reporting import state
from kdtree_verify.reporting.state import State
from kdtree_verify.reporting.status import read
from kdtree_verify.reporting.status_table import table
from rig import Rig

WAYS = pytest.mark.parametrize(
    "way",
    [
        {},
        {"graph_batch": 4},
        {"spec": "ngram", "fp8_pool": torch.float8_e4m3fn, "descales": (0.5, 1.5)},
        {"prefixes": (0, 5, 129), "draft_tokens": 13, "heads": 12, "page_size": 16},
    ],
    ids=str,
)


@WAYS
def test_every_third_call_is_compared_and_all_are_ours(arm, way) -> None:
    process = arm("on", sample_every=3)
    rig = Rig(**way)
    process.rank._sampler, sampler = None, process.rank._sampler
    step = rig.step()
    ours = rig.run(step)
    process.rank._sampler = sampler

    for calls in range(1, 8):
        assert torch.equal(rig.run(step), ours)
        (figures,) = process.rank.records.layers()
        assert figures.compare_calls == (calls + 2) // 3  # the first, the fourth, the seventh
    assert figures.compare_rows == 3 * len(step.q)  # graph padding left out
    assert figures.kernel_calls == 8
    assert 0 < figures.worst_rel_l2 < kernel.rel_l2_bound(process.rank.pool_dtype)
    assert process.rank.verdict().state is State.SERVING

    document = report.document(process.rank, state.this_rank(), {})
    assert document["sampled"] == {"every": 3, "calls": 3, "exceeded_calls": 0}
    (shape,) = document["shapes"]
    assert (shape["calls"], shape["timed_calls"]) == (3, 0)
    assert "3 calls sampled (1 of 3); worst relative L2" in report.line(process.rank)


def test_stock_has_nothing_to_do_between(arm) -> None:
    """The interpreter shows it: a call whose gate is closed writes no element of the scratch output."""
    process = arm("on", sample_every=2)
    rig = Rig(graph_batch=4)
    scratch = []
    stock = rig.backend._kdtree_guard.stock

    def watched(*args, **kwargs):
        args[3].fill_(77.0)
        stock(*args, **kwargs)
        scratch.append((args[3] != 77.0).float().mean().item())

    rig.backend._kdtree_guard.stock = watched
    for _ in range(4):
        rig.run(rig.step())
    assert scratch == [pytest.approx(1.0, abs=0.01), 0.0] * 2
    assert process.rank.records.layers()[0].compare_calls == 2


def test_layers_take_turns(arm) -> None:
    process = arm("on", sample_every=4)
    rig = Rig()
    rig.pool.kv_buffer = rig.pool.kv_buffer[:1] * 4  # the kit has one layer
    for steps in range(1, 6):
        for layer in range(4):
            rig.layer.layer_id = layer
            rig.run(rig.step())
        compared = [figures.compare_calls for figures in process.rank.records.layers()]
        assert sum(compared) == steps  # one layer's call of each step
    assert compared == [2, 1, 1, 1]


def test_a_kernel_that_goes_wrong_is_told_and_kept(arm, defective_dir, monkeypatch, tmp_path, caplog) -> None:
    monkeypatch.setattr("kdtree_verify.rank.reporter.LOOK_EVERY", 3600.0)  # nobody else takes it, or tells
    process = arm("on", sample_every=2, library_dir=defective_dir)
    rig = Rig()
    rig.run(rig.step())
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    step = rig.step()
    wrong = rig.run(step)  # not sampled
    assert process.rank.box.take() is None
    assert torch.equal(rig.run(step), wrong)
    (figures,) = process.rank.records.layers()
    assert (figures.compare_calls, figures.exceeded_calls) == (2, 1)
    found = process.rank.box.take()
    rows = slice(found.request * rig.draft_tokens, (found.request + 1) * rig.draft_tokens)
    assert torch.equal(found.ours, wrong.view(-1, rig.heads, 512)[rows])
    monkeypatch.delenv("KDTREE_DEFECT")

    with caplog.at_level(logging.ERROR):
        talk = reporter.Reporter(process.rank, tmp_path / "rank-x.json", dict, 60.0)
        talk.tell_out_of_bound()
        talk.tell_out_of_bound()
    (line,) = [record.getMessage() for record in caplog.records if "left its bound" in record.getMessage()]
    assert line.startswith("kdtree on: layer 0 left its bound")
    assert "in 1 of 2 calls compared; this kernel's answers are served. Fix: " in line
    assert "stock's answers" not in line

    (path,) = tmp_path.glob("rank-*.json")
    state.write(path, report.document(process.rank, state.this_rank(), {}))
    shown = table(read(tmp_path))
    assert "worst layers" in shown
    assert "left its bound in 1 calls" in shown


@pytest.mark.parametrize("what", ["gate-refused", "stock", "compare", "memory"])
def test_what_fails_in_sampling_ends_nothing(arm, defective_dir, monkeypatch, caplog, what) -> None:
    process = arm("on", sample_every=1, library_dir=defective_dir)
    rig = Rig()
    step = rig.step()
    ours = rig.run(step)

    def broken(*args, **kwargs):
        raise RuntimeError("out of resources")

    monkeypatch.setenv("KDTREE_DEFECT", what)
    if what == "stock":
        rig.backend._kdtree_guard.stock = broken
    elif what == "compare":
        monkeypatch.setattr(process.rank.kernel, "compare", lambda *args, **kwargs: 10)
    elif what == "memory":
        monkeypatch.setattr("kdtree_verify.rank.sampling.torch.empty_like", broken)
    for _ in range(2):
        assert torch.equal(rig.run(step), ours)
    assert process.rank.verdict().state is State.SERVING
    assert caplog.text.count("a call could not be sampled") == 1


def test_without_sampling_stock_is_never_called(arm) -> None:
    process = arm("on")
    rig = Rig()
    rig.backend._kdtree_guard.stock = None
    rig.run(rig.step())
    assert process.rank.records.layers()[0].kernel_calls == 1
    assert report.document(process.rank, state.this_rank(), {})["sampled"] is None


def test_validate_samples_nothing(arm) -> None:
    process = arm("validate", sample_every=2)
    rig = Rig()
    for _ in range(3):
        rig.run(rig.step())
    assert process.rank.records.layers()[0].compare_calls == 3
    assert report.document(process.rank, state.this_rank(), {})["sampled"] is None
