"""How far stock and ours are from float64 when a rank arms: by SGLang's own kernel, interpreted."""

from __future__ import annotations

import pytest
import torch

from kdtree_verify.rank import report, yardstick
from kdtree_verify.reporting import state
from rig import Rig


@pytest.mark.parametrize(
    ("pool", "case", "least", "most"),
    [
        (None, "p64", 5e-4, 5e-3),
        (torch.float8_e4m3fn, "e4m3-all", 1e-2, 0.2),  # stock casts q and P to fp8
        (torch.float8_e5m2, "e5m2-all", 1e-2, 0.3),
    ],
    ids=str,
)
def test_a_rank_knows_what_it_is_held_against(arm, pool, case, least, most) -> None:
    process = arm("validate")
    Rig(fp8_pool=pool)
    found = report.document(process.rank, state.this_rank(), {})["yardstick"]
    assert found["case"] == case
    assert least < found["stock_rel_l2"] < most
    assert 5e-4 < found["kernel_rel_l2"] < 4e-3  # float64 rounded to bf16
    assert process.rank.records.layers() == []  # it counts as no call


def test_a_wrong_stock_shows(arm, monkeypatch) -> None:
    process = arm("validate")
    rig = Rig()
    stock = rig.backend._kdtree_guard.stock

    def off(*args):
        stock(*args)
        args[3].mul_(1.5)

    found = yardstick.measure(off, process.rank.kernel, torch.bfloat16, 4, 8)
    assert found.stock_rel_l2 == pytest.approx(0.5, rel=0.02)
    assert found.kernel_rel_l2 < 4e-3


def test_what_cannot_run_is_none_and_ends_nothing(arm, monkeypatch) -> None:
    process = arm("validate")
    Rig()
    kernel = process.rank.kernel

    def no_triton(*args):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    assert yardstick.measure(no_triton, kernel, torch.bfloat16, 4, 8) is None
    assert yardstick.measure(no_triton, kernel, None, 4, 8) is None
    assert yardstick.measure(no_triton, kernel, torch.float32, 4, 8) is None
    monkeypatch.setattr(kernel, "verify", lambda *args: 10)
    assert yardstick.measure(lambda *args: None, kernel, torch.bfloat16, 4, 8) is None
