"""The replay's float64 reference: against the rig's own, and what it allows against what SGLang's kernel does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from captured import made, of_step
from kdtree_verify.replay import reference
from kdtree_verify.replay.judge import distance
from rig import Rig

WAYS = {
    "bf16": {},
    "float32": {"dtype": torch.float32},
    "empty prefix": {"prefixes": (0, 5, 129), "draft_tokens": 13, "heads": 12},
    "one token": {"prefixes": (0, 1, 64), "draft_tokens": 1, "heads": 1},
    "e4m3": {"fp8_pool": torch.float8_e4m3fn},
    "e5m2": {"fp8_pool": torch.float8_e5m2},
    "e4m3, descales": {"fp8_pool": torch.float8_e4m3fn, "descales": (0.5, 1.5)},
    "e5m2, descales": {"fp8_pool": torch.float8_e5m2, "descales": (2.0, 0.75)},
}


@pytest.mark.parametrize("causal", [False, True], ids=["tree", "chain"])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_attention_and_stock_is_as_far_off_as_it_says(way: str, causal: bool) -> None:
    rig = Rig(**WAYS[way])
    step = rig.step()
    if causal:
        step.mask = None
        step.visible = [torch.ones(rig.draft_tokens, rig.draft_tokens).tril().bool()] * len(rig.prefixes)
    stock = rig.run(step)
    wanted = rig.reference(step)
    for request, rows in enumerate(wanted.split(rig.draft_tokens)):
        capture = of_step(rig, step, request, stock, stock)
        found = reference.compute(capture)
        assert (found.exact - rows).norm() < 1e-6 * rows.norm()  # scales are float32 in one, float64 in the other
        assert distance(capture.stock, found.exact).within(found.stock_limit)
        if "fp8_pool" in WAYS[way] and rig.prefixes[request] > 32:
            # Not only below the limit: the rounding that it stands for is what stock's distance is made of.
            assert distance(capture.stock, found.exact).rel_l2 == pytest.approx(found.stock_rounding, rel=0.3)
            assert found.stock_rounding > 10 * found.ours_rounding


def test_heads_are_computed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = made(tokens=6, heads=7, prefix=33, pool=torch.float8_e5m2)
    whole = reference.compute(capture)
    for at_once in (1, 2 * 6 * 39):  # one head, two and a rest
        monkeypatch.setattr(reference, "_SCORES_AT_ONCE", at_once)
        parts = reference.compute(capture)
        torch.testing.assert_close(parts.exact, whole.exact, rtol=1e-12, atol=1e-15)
        assert parts.stock_rounding == pytest.approx(whole.stock_rounding)
        assert parts.ours_rounding == pytest.approx(whole.ours_rounding)


def test_a_row_that_sees_nothing_is_zeros() -> None:
    visible = torch.eye(5, dtype=torch.uint8)
    visible[[1, 3]] = 0
    capture = made(prefix=0, visible=visible)
    found = reference.compute(capture)
    assert found.exact.isfinite().all()
    assert not found.exact[[1, 3]].any()
    for row in (0, 2, 4):  # it sees itself alone
        assert torch.equal(found.exact[row], capture.v[row].double().expand(3, -1))
    with_prefix = reference.compute(made(prefix=2, visible=visible))
    assert with_prefix.exact.abs().sum(-1).all()


def test_all_rows_blind() -> None:
    found = reference.compute(made(prefix=0, visible=torch.zeros(5, 5, dtype=torch.uint8)))
    assert not found.exact.any()
    assert (found.stock_rounding, found.ours_rounding) == (0.0, 0.0)


def test_any_nonzero_mask_byte_is_true() -> None:
    capture = made()
    assert capture.visible is not None
    bytes_of_mask = replace(capture, visible=capture.visible * torch.tensor([1, 2, 128, 255, 77], dtype=torch.uint8))
    assert torch.equal(reference.compute(bytes_of_mask).exact, reference.compute(capture).exact)


def test_scores_that_overflow_a_naive_softmax() -> None:
    capture = made(sm_scale=1e4)
    assert reference.compute(capture).exact.isfinite().all()
    assert reference.compute(replace(capture, sm_scale=-1e4)).exact.isfinite().all()
    assert reference.compute(replace(capture, sm_scale=0.0)).exact.isfinite().all()
