"""A kernel that goes wrong after its self-test: validate's answers stay right and its report says so, on's differ."""

from __future__ import annotations

import pytest
import torch

from kdtree_verify.errors import DeviceError, LibraryError
from kdtree_verify.native.abi import Status
from kdtree_verify.rank import kernel, report
from kdtree_verify.rank.eligibility import Reason
from kdtree_verify.rank.records import Model
from kdtree_verify.reporting import state
from kdtree_verify.reporting.state import State
from rig import Rig


@pytest.fixture
def stock() -> torch.Tensor:
    rig = Rig()
    return rig.run(rig.step())


def test_validate_answers_as_stock_and_reports_the_difference(arm, defective_dir, stock, monkeypatch, caplog) -> None:
    process = arm("validate", library_dir=defective_dir)
    rig = Rig()
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    assert torch.equal(rig.run(rig.step()), stock)

    (figures,) = process.rank.records.layers()
    assert figures.exceeded_calls == 1
    assert figures.worst_rel_l2 > 10 * kernel.REL_L2_BOUND
    assert "calls out of bound 1" in report.line(process.rank)


@pytest.mark.parametrize("pool", [None, torch.float8_e4m3fn], ids=str)
def test_validate_keeps_the_call_for_whoever_looks_into_it(arm, defective_dir, pool, monkeypatch) -> None:
    monkeypatch.setattr("kdtree_verify.rank.reporter.LOOK_EVERY", 3600.0)  # nobody else takes it
    process = arm("validate", library_dir=defective_dir)
    rig = Rig(prefixes=(33, 70), graph_batch=4, fp8_pool=pool)
    rig.run(rig.step())
    assert process.rank.box.take() is None
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    step = rig.step()
    stock = rig.run(step).view(2, rig.draft_tokens, rig.heads, 512)
    rig.run(rig.step())  # finds the box full
    document = report.document(process.rank, state.this_rank(), {})
    assert document["box"] == {"too_large": 0, "found_full": 1}
    found = process.rank.box.take()
    assert (found.model, found.layer, found.batch) == (Model.TARGET, 0, 4)
    assert found.request in (0, 1)  # the others are padding
    rows = slice(found.request * rig.draft_tokens, (found.request + 1) * rig.draft_tokens)
    assert torch.equal(found.q, step.q[rows])
    assert torch.equal(found.visible.bool(), step.visible[found.request])
    assert torch.equal(found.stock, stock[found.request])
    assert found.prefix.shape == (rig.prefixes[found.request], 576)
    difference = (found.ours.double() - found.stock.double()).norm() / found.stock.double().norm()
    assert difference > found.bound == kernel.rel_l2_bound(found.prefix.dtype)


def test_no_memory_for_the_box_is_no_reason_not_to_serve(arm, stock, monkeypatch, caplog) -> None:
    def no_memory(*args, **kwargs):
        raise DeviceError("cudaHostAlloc failed", "cudaErrorMemoryAllocation: out of memory", "check")

    monkeypatch.setattr("kdtree_verify.rank.process.Box", no_memory)
    process = arm("validate")
    rig = Rig()
    assert torch.equal(rig.run(rig.step()), stock)
    assert process.rank.box is None
    assert process.rank.records.layers()[0].compare_calls == 1
    assert "none will be kept" in caplog.text


@pytest.mark.parametrize("dtype", list(kernel.REL_L2_BOUND_FP8_POOL), ids=str)
def test_validate_sees_it_over_an_fp8_pool(arm, defective_dir, dtype, monkeypatch) -> None:
    process = arm("validate", library_dir=defective_dir)
    rig = Rig(fp8_pool=dtype)
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    rig.run(rig.step())
    (figures,) = process.rank.records.layers()
    assert figures.exceeded_calls == 1
    assert figures.worst_rel_l2 > 2 * kernel.REL_L2_BOUND_FP8_POOL[dtype]


def test_on_answers_otherwise(arm, defective_dir, stock, monkeypatch) -> None:
    arm("on", library_dir=defective_dir)
    rig = Rig()
    step = rig.step()
    right = rig.run(step)
    assert ((right.double() - stock.double()).norm() / stock.double().norm()).item() < 0.01
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    assert ((rig.run(step).double() - stock.double()).norm() / stock.double().norm()).item() > 0.2


def test_a_refused_launch_in_validate_is_stock_counted_and_failed(arm, defective_dir, stock, monkeypatch) -> None:
    process = arm("validate", library_dir=defective_dir)
    rig = Rig()
    monkeypatch.setenv("KDTREE_DEFECT", "launch-refused")
    assert torch.equal(rig.run(rig.step()), stock)
    assert process.rank.records.declined(Model.TARGET) == {Reason.LAUNCH_FAILED: 1}
    verdict = process.rank.verdict()
    assert verdict.state is State.FAILED
    assert verdict.reason.startswith("kdtree_verify: ")


def test_a_stamp_that_fails_costs_only_the_times(arm, defective_dir, stock, monkeypatch) -> None:
    process = arm("validate", library_dir=defective_dir)
    rig = Rig()
    monkeypatch.setenv("KDTREE_DEFECT", "stamp-refused")
    assert torch.equal(rig.run(rig.step()), stock)
    (shape,) = process.rank.records.shapes()
    assert (shape.calls, shape.timed_calls) == (1, 0)
    assert process.rank.verdict().state is State.SERVING


def test_a_refused_launch_in_on_ends_the_call(arm, defective_dir, monkeypatch) -> None:
    process = arm("on", library_dir=defective_dir)
    rig = Rig()
    monkeypatch.setenv("KDTREE_DEFECT", "launch-refused")
    with pytest.raises(LibraryError, match=r"^kdtree: the kernel did not run: kdtree_verify: .* Fix: "):
        rig.run(rig.step())
    assert process.rank.verdict().state is State.FAILED


def test_no_memory_in_validate_leaves_stocks_answer(arm, stock, monkeypatch) -> None:
    process = arm("validate")
    rig = Rig()

    def no_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory")

    step = rig.step()
    monkeypatch.setattr("kdtree_verify.rank.rank.torch.empty_like", no_memory)
    assert torch.equal(rig.run(step), stock)
    assert "no memory" in process.rank.verdict().reason


def test_a_failed_compare_is_a_failure(arm, stock, monkeypatch) -> None:
    process = arm("validate")
    rig = Rig()
    monkeypatch.setattr(process.rank.kernel, "compare", lambda *args: Status.ERR_LAUNCH)
    assert torch.equal(rig.run(rig.step()), stock)
    assert process.rank.verdict().reason.startswith("kdtree_compare: ")
    assert process.rank.records.declined(Model.TARGET) == {}


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_a_library_that_is_wrong_from_the_start_ends_the_process(arm, defective_dir, monkeypatch, capsys, mode) -> None:
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    arm(mode, library_dir=defective_dir)
    with pytest.raises(SystemExit) as end:
        Rig()
    assert end.value.code == 76
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("kdtree: the kernel library failed its self-test")
    assert "Fix: " in line
