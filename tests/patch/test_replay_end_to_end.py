"""A kernel that goes wrong in validate: device, box, file, and `kdtree replay` says who was right."""

from __future__ import annotations

import json
import time
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention import extend_attention

from kdtree_verify import cli
from kdtree_verify.replay import file, folder
from kdtree_verify.replay.capture import Capture
from rig import Rig, Step

SECONDS = 30.0


def kept(directory: Path, count: int = 1) -> list[Path]:
    """The captures, once there are so many: the rank's own reporter takes, and a thread of its own writes."""
    until = time.monotonic() + SECONDS
    while len(found := folder.paths(directory / "captures")) < count:
        assert time.monotonic() < until, f"{len(found)} captures after {SECONDS} s"
        time.sleep(0.1)
    return found


def replay(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    code = cli.main(["replay", str(path), "--device", "cpu", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return document


def assert_is_of(capture: Capture, rig: Rig, step: Step, request: int) -> None:
    """The capture holds exactly what the step's request was computed from."""
    rows = slice(request * rig.draft_tokens, (request + 1) * rig.draft_tokens)
    slots = rig.runner.req_to_token_pool.req_to_token[1 + request, : rig.prefixes[request]].long()
    pool = rig.pool.get_key_buffer(0)
    assert torch.equal(capture.q, step.q[rows])
    assert torch.equal(capture.k, step.k[rows, 0])
    assert torch.equal(capture.v, step.v[rows, 0])
    assert capture.prefix.dtype == pool.dtype
    assert torch.equal(capture.prefix.view(torch.uint8), pool.view(torch.uint8)[slots, 0])
    if step.mask is None:
        assert capture.visible is None
    else:
        assert torch.equal(capture.visible != 0, step.visible[request])
    assert capture.request == request


WAYS = {
    "bf16": {},
    "graph": {"graph_batch": 4},
    "e4m3": {"fp8_pool": torch.float8_e4m3fn, "descales": (0.5, 1.5)},
    "e5m2": {"fp8_pool": torch.float8_e5m2},
    "one token": {"draft_tokens": 1, "prefixes": (40, 60)},
    "empty prefix": {"prefixes": (0,), "draft_tokens": 12},
    "chain": {},
}


@pytest.mark.parametrize("way", WAYS)
def test_ours_was_wrong(
    way: str, arm, defective_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, caplog
) -> None:
    arm("validate", library_dir=defective_dir, evidence_dir=tmp_path / "evidence")
    rig = Rig(**WAYS[way])
    step = rig.step()
    if way == "chain":
        step.mask = None
        step.visible = [torch.ones(rig.draft_tokens, rig.draft_tokens).tril().bool()] * len(rig.prefixes)
    monkeypatch.setenv("KDTREE_DEFECT", "heads-swapped")
    stock = rig.run(step)
    monkeypatch.delenv("KDTREE_DEFECT")
    (path,) = kept(tmp_path / "evidence")

    capture, origin = file.read(path)
    assert_is_of(capture, rig, step, capture.request)
    rows = slice(capture.request * rig.draft_tokens, (capture.request + 1) * rig.draft_tokens)
    assert torch.equal(capture.stock, stock[rows])
    assert (capture.layer, capture.batch) == (0, WAYS[way].get("graph_batch") or len(rig.prefixes))
    assert capture.rel_l2 > capture.bound
    assert origin.mode == "validate"
    assert any(f"kdtree replay {path}" in record.getMessage() for record in caplog.records)

    # By the library that was wrong, which is right now: a fault that does not repeat.
    monkeypatch.setenv("KDTREE_LIBRARY_DIR", str(defective_dir))
    found = replay(path, capsys)
    assert found["verdict"] == "unrepeated"
    assert found["same_library"]
    # As it was then, ours is the same to the bit.
    monkeypatch.setenv("KDTREE_DEFECT", "heads-swapped")
    found = replay(path, capsys)
    assert found["verdict"] == "ours_wrong"
    assert found["verdict_line"].endswith("repeated, it is wrong again; stock was right")
    assert found["repeated"]["ours"][0]["differing"] == 0
    assert found["recorded"]["ours"] == found["repeated"]["ours"][0]["distance"]


def test_a_right_library_says_so_of_a_wrong_ones_call(
    arm, defective_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    arm("validate", library_dir=defective_dir, evidence_dir=tmp_path)
    rig = Rig()
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    rig.run(rig.step())
    (path,) = kept(tmp_path)
    found = replay(path, capsys)
    assert not found["same_library"]
    assert found["verdict"] == "ours_wrong"
    assert "another library than the recorded one repeated it, and is right" in found["verdict_line"]


def test_nan_in_ours(arm, defective_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    arm("validate", library_dir=defective_dir, evidence_dir=tmp_path)
    rig = Rig(draft_tokens=3)
    monkeypatch.setenv("KDTREE_DEFECT", "last-head-unwritten")  # rows of NaN
    rig.run(rig.step())
    (path,) = kept(tmp_path)
    found = replay(path, capsys)
    assert found["verdict"] == "ours_wrong"
    ours = found["recorded"]["ours"]
    assert (ours["nonfinite"], ours["head"]) == (3 * 512, rig.heads - 1)


def test_stock_was_wrong(arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """SGLang's kernel is exchanged for one that answers half as much again before the backend takes it."""
    original = extend_attention.extend_attention_fwd

    @wraps(original)
    def wrong(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        args[3].mul_(1.5)

    monkeypatch.setattr(extend_attention, "extend_attention_fwd", wrong)
    arm("validate", evidence_dir=tmp_path)
    rig = Rig()
    rig.run(rig.step())
    (path,) = kept(tmp_path)
    found = replay(path, capsys)
    assert found["verdict"] == "stock_wrong"
    assert found["recorded"]["stock"]["rel_l2"] == pytest.approx(0.5, rel=0.02)


def test_nothing_is_kept_where_nothing_is_wrong_or_asked_for(
    arm, defective_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm("validate", evidence_dir=tmp_path / "right")
    rig = Rig()
    rig.run(rig.step())
    process = arm("validate", library_dir=defective_dir, evidence_dir=tmp_path / "asked", captures=0)
    assert process.config.captures == 0
    rig = Rig()
    assert process.rank is None or process.rank.box is None
    monkeypatch.setenv("KDTREE_DEFECT", "head-stride")
    rig.run(rig.step())
    time.sleep(2)
    assert not (tmp_path / "right" / "captures").exists()
    assert not (tmp_path / "asked" / "captures").exists()
