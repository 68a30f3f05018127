"""`kdtree replay` on a GPU: each compiled variant repeats the call twice, and SGLang's kernel where it is installed."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from captured import made
from kdtree_verify import cli
from kdtree_verify.native.library import Library
from kdtree_verify.replay import file, origin, repeat
from kdtree_verify.replay.capture import Capture

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
SHAPES = {
    "a tree": {"tokens": 16, "heads": 16, "prefix": 3000},
    "a chain": {"tokens": 60, "heads": 12, "prefix": 130, "causal": True},
    "no prefix": {"tokens": 7, "heads": 8, "prefix": 0},
    "one token, one head": {"tokens": 1, "heads": 1, "prefix": 1},
}
POOLS = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def replayed(capture: Capture, library: Library, path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `kdtree replay` says, by default on the GPU: the capture is this library's."""
    file.write(path, capture, origin.now("validate", "dp0-pp0-tp0", None, GPU, library.description))
    code = cli.main(["replay", str(path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    assert document["same_library"]
    assert document["repeated_on"].endswith("(cuda:0)")
    return document


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_each_variant_repeats_it(
    library: Library, name: str, pool: torch.dtype, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = made(pool=pool, **SHAPES[name])
    answers = repeat.ours(capture, library, GPU)
    capture = replace(capture, ours=answers[0].out)
    found = replayed(capture, library, tmp_path / "c", capsys)
    assert found["verdict"] == "right", found["verdict_line"]
    again = {each["name"]: each for each in found["repeated"]["ours"]}
    variants = library.description.variants
    assert list(again) == ["automatic", *variants] if len(variants) > 1 else [*variants]
    assert all(each["steady"] for each in again.values())
    assert next(iter(again.values()))["differing"] == 0
    if find_spec("sglang") is not None:
        stock = found["repeated"]["stock"]
        assert stock["nonfinite"] == 0
        assert stock["rel_l2"] <= found["limits"]["stock"]


def test_a_wrong_answer_does_not_repeat(library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = made(16, 16, 3000)
    wrong = repeat.ours(capture, library, GPU)[0].out.clone()
    wrong[3, 5, 100:116] = 7.0  # as a stray write of 32 bytes would
    found = replayed(replace(capture, ours=wrong), library, tmp_path / "c", capsys)
    assert found["verdict"] == "unrepeated"
    ours = found["recorded"]["ours"]
    assert (ours["token"], ours["head"]) == (3, 5)
    assert found["repeated"]["ours"][0]["differing"] == 16


def test_no_such_gpu(tmp_path: Path, library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c"
    file.write(path, made(), origin.now("validate", "dp0-pp0-tp0", None, GPU, library.description))
    assert cli.main(["replay", str(path), "--device", f"cuda:{torch.cuda.device_count()}"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kdtree: no such CUDA device: ")
