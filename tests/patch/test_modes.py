"""off, validate and on with a real TritonAttnBackend: whose answer is returned, and what is reported of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from kdtree_verify.rank import kernel, report
from kdtree_verify.rank.eligibility import Reason
from kdtree_verify.rank.records import Model
from kdtree_verify.reporting import state
from kdtree_verify.reporting.state import State
from rig import Rig, TritonAttnBackend

WAYS = pytest.mark.parametrize(
    "way",
    [
        {"spec": "eagle"},
        {"spec": "ngram"},
        {"spec": "eagle", "graph_batch": 4},
        {"spec": "ngram", "graph_batch": 4},
        {"spec": "eagle", "page_size": 16},
        {"spec": "ngram", "fp8_pool": torch.float8_e4m3fn},
        {"spec": "eagle", "fp8_pool": torch.float8_e5m2},
        {"spec": "eagle", "fp8_pool": torch.float8_e4m3fn, "descales": (0.5, 1.5), "graph_batch": 4},
        {"spec": "ngram", "fp8_pool": torch.float8_e5m2, "descales": (2.0, 0.75), "page_size": 16},
        {"spec": "eagle", "dtype": torch.float32},
        {"prefixes": (0, 5, 129), "draft_tokens": 13, "heads": 12},
    ],
    ids=lambda way: "-".join(f"{k}={v}".replace(" ", "") for k, v in way.items()),
)


@pytest.fixture(scope="module")
def stock_answer() -> Callable[[dict], tuple[torch.Tensor, torch.Tensor]]:
    """What an unpatched backend answers, and the KV pool as it left it."""
    known: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def answer(way: dict) -> tuple[torch.Tensor, torch.Tensor]:
        if repr(way) not in known:
            rig = Rig(**way)
            known[repr(way)] = rig.run(rig.step()), rig.pool.kv_buffer[0].clone()
        return known[repr(way)]

    return answer


@WAYS
def test_validate_returns_stock_and_measures_ours(stock_answer, arm, way) -> None:
    stock, written = stock_answer(way)
    process = arm("validate")
    rig = Rig(**way)
    step = rig.step()
    got = rig.run(step)

    assert torch.equal(got, stock)
    assert torch.equal(rig.pool.kv_buffer[0], written)
    (figures,) = process.rank.records.layers()
    assert (figures.kernel_calls, figures.compare_calls, figures.out_of_range) == (1, 1, 0)
    assert figures.compare_rows == len(step.q)  # padded requests are left out
    assert figures.nonfinite == figures.exceeded_calls == 0
    # Ours is the float64 result rounded to the output's dtype: the figures are stock's distance from that.
    ours = rig.reference(step).to(rig.dtype).double()
    expected = ((ours - stock.double()).norm() / stock.double().norm()).item()
    assert figures.rel_l2 == pytest.approx(expected, rel=0.02)
    assert figures.max_abs == pytest.approx((ours - stock.double()).abs().max().item(), rel=0.2)
    assert process.rank.verdict().state is State.SERVING


@WAYS
def test_on_answers_itself_and_writes_kv_as_stock(stock_answer, arm, way) -> None:
    stock, written = stock_answer(way)
    process = arm("on")
    rig = Rig(**way)
    step = rig.step()
    got = rig.run(step)

    wanted = rig.reference(step)
    error = ((got.double() - wanted).norm() / wanted.norm()).item()
    assert error < (1e-6 if rig.dtype is torch.float32 else 2.0**-9)
    assert error < ((stock.double() - wanted).norm() / wanted.norm()).item()
    assert torch.equal(rig.pool.kv_buffer[0], written)
    (figures,) = process.rank.records.layers()
    assert (figures.kernel_calls, figures.compare_calls) == (1, 0)
    assert process.rank.verdict().state is State.SERVING


def test_validate_reports_shapes_and_times(arm) -> None:
    process = arm("validate")
    rig = Rig(graph_batch=4)
    for _ in range(3):
        rig.run(rig.step())
    document = report.document(process.rank, state.this_rank(), {})
    (shape,) = document["shapes"]
    (layer,) = document["layers"]
    assert (shape["prefix_from"], shape["prefix_below"]) == (0, 1024)
    assert (shape["batch_from"], shape["batch_below"]) == (2, 4)  # of 4 requests 2 are padding
    assert (shape["calls"], shape["timed_calls"], shape["exceeded_calls"], shape["nonfinite"]) == (3, 3, 0, 0)
    assert shape["worst_rel_l2"] == layer["worst_rel_l2"] >= shape["mean_rel_l2"] > 0
    assert min(shape["stock_ns"], shape["kernel_ns"]) > 0
    assert document["pool_dtype"] == "bf16"


def test_a_chain_without_a_mask(arm) -> None:
    arm("on")
    rig = Rig()
    step = rig.step()
    step.mask = None
    step.visible = [torch.ones(rig.draft_tokens, rig.draft_tokens).tril().bool()] * 2
    wanted = rig.reference(step)
    assert ((rig.run(step).double() - wanted).norm() / wanted.norm()).item() < 2.0**-9


def test_draft_rows_read_back_from_the_pool(arm) -> None:
    # k = v = None: stock gathers the rows from a bf16 pool, and the call that follows is ours.
    process = arm("on")
    rig = Rig()
    step = rig.step()
    rig.run(step)
    wanted = rig.reference(step)
    step.k = step.v = None
    assert ((rig.run(step).double() - wanted).norm() / wanted.norm()).item() < 2.0**-9
    assert process.rank.records.layers()[0].kernel_calls == 2


def test_a_scale_without_the_other_is_not_applied(arm) -> None:
    # As stock: a checkpoint with one of them has both by the time it is loaded.
    arm("on")
    rig = Rig(fp8_pool=torch.float8_e4m3fn)
    rig.layer.k_scale = torch.tensor(0.5)
    rig.layer.k_scale_float = 0.5
    step = rig.step()
    wanted = rig.reference(step)
    assert ((rig.run(step).double() - wanted).norm() / wanted.norm()).item() < 2.0**-9


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("dtype", list(kernel.REL_L2_BOUND_FP8_POOL), ids=str)
def test_the_bound_of_an_fp8_pool_holds_what_stock_is_off_by(arm, dtype, sharpness) -> None:
    # Stock casts q and P to the pool's dtype; ours does not. Scores have a standard deviation of 0.2 to 9.
    process = arm("validate")
    rig = Rig(prefixes=(40, 240), fp8_pool=dtype)
    step = rig.step()
    step.q = step.q * sharpness
    stock, wanted = rig.run(step).double(), rig.reference(step)
    off = ((stock - wanted).norm() / wanted.norm()).item()
    (figures,) = process.rank.records.layers()
    assert figures.rel_l2 == pytest.approx(off, rel=0.05)
    assert figures.exceeded_calls == 0
    bound = kernel.REL_L2_BOUND_FP8_POOL[dtype]
    assert bound / 10 < off < bound


def test_nans_of_stock_do_not_count_but_ours_do(arm) -> None:
    process = arm("validate")
    rig = Rig()
    step = rig.step()
    step.q[3, 1, 5] = float("nan")  # stock answers this row with NaN, and so does ours
    rig.run(step)
    (figures,) = process.rank.records.layers()
    assert figures.nonfinite == figures.exceeded_calls == 0
    assert figures.rel_l2 < 0.01


def test_calls_outside_verify_are_stock(arm) -> None:
    process = arm("on")
    rig = Rig()
    step = rig.step()
    batch = rig.prepare(step)
    batch.forward_mode = type(batch.forward_mode).DRAFT_EXTEND_V2
    stock = rig.backend._kdtree_guard.stock
    arguments = (step.q, step.k, step.v, rig.layer, batch)
    with torch.no_grad():
        got = rig.backend.forward_extend(*arguments)
        rig.backend.extend_attention_fwd = stock
        assert torch.equal(got, rig.backend.forward_extend(*arguments))
    assert process.rank.records.layers() == []
    assert process.rank.not_verify_calls == 2
    assert process.rank.verdict().state is State.ARMED


def test_only_the_thread_inside_a_verify_call_is_served(arm) -> None:
    process = arm("on")
    rig = Rig()
    step = rig.step()
    seen = []
    set_kv_buffer = rig.pool.set_kv_buffer

    def call_from_elsewhere(*args, **kwargs):
        # While this thread is inside forward_extend, another calls the attention function of the same backend.
        m = rig.backend.forward_metadata
        q = step.q
        out = torch.empty(*q.shape[:2], 512, dtype=q.dtype)
        pool = rig.pool.get_key_buffer(0), rig.pool.get_value_buffer(0)
        call = (q, step.k, step.v, out, *pool, m.qo_indptr, m.kv_indptr, m.kv_indices, m.custom_mask, True)
        rest = (m.mask_indptr, m.max_extend_len, 1.0, 1.0, rig.layer.scaling)
        thread = threading.Thread(target=rig.backend.extend_attention_fwd, args=(*call, *rest))
        thread.start()
        thread.join()
        seen.append(process.rank.records.layers())
        return set_kv_buffer(*args, **kwargs)

    rig.pool.set_kv_buffer = call_from_elsewhere
    rig.run(step)
    assert seen == [[]]
    assert process.rank.records.layers()[0].kernel_calls == 1


def test_an_exception_leaves_nothing_behind(arm) -> None:
    process = arm("on")
    rig = Rig()
    step = rig.step()
    set_kv_buffer = rig.pool.set_kv_buffer

    def broken(*args, **kwargs):
        raise RuntimeError("no room")

    rig.pool.set_kv_buffer = broken
    with pytest.raises(RuntimeError, match="no room"):
        rig.run(step)
    from kdtree_verify.rank import hook

    assert hook._this_thread.turn is None
    rig.pool.set_kv_buffer = set_kv_buffer
    rig.run(step)
    assert process.rank.records.layers()[0].kernel_calls == 1


def test_patching_twice_wraps_once(arm) -> None:
    arm("on")
    once = TritonAttnBackend.forward_extend, TritonAttnBackend.__init__
    arm("on")
    assert (TritonAttnBackend.forward_extend, TritonAttnBackend.__init__) == once


def test_a_draft_model_is_counted_apart(arm) -> None:
    process = arm("on")
    rig = Rig(latent=256)  # stands for a draft whose layers are not ours
    rig.runner.is_draft_worker = True
    rig.backend = TritonAttnBackend(rig.runner)
    rig.run(rig.step())
    assert process.rank.records.declined(Model.DRAFT) == {Reason.HEAD_DIM: 1}
    assert process.rank.verdict().state is State.ARMED
    assert report.document(process.rank, state.this_rank(), {})["counters"]["declined"] == {"draft:head_dim": 1}


def test_the_document_of_a_rank(arm) -> None:
    process = arm("validate")
    rig = Rig()
    for _ in range(3):
        rig.run(rig.step())
    found = report.document(process.rank, state.this_rank(), {"kind": "cpu"})
    assert found["mode"] == "validate"
    assert found["state"] == "serving"
    assert found["counters"]["verify_calls"] == found["counters"]["kernel_calls"] == 3
    (layer,) = found["layers"]
    assert (layer["layer"], layer["calls"], layer["rows"]) == (0, 3, 48)
    assert 0 < layer["rel_l2"] <= layer["worst_rel_l2"] < 0.01
    assert found["library"]["kind"] == "host"
    assert found["versions"]["sglang"]
    line = report.line(process.rank)
    assert "validate: serving; 3 kernel calls in 1 layers; declined none; out of range 0" in line
    assert "\n" not in line
