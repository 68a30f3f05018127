"""`kdtree replay` on captures whose fault is known: its verdict, its exit code, its figures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from captured import ORIGIN, made
from kdtree_verify import cli
from kdtree_verify.config import Device, from_environment
from kdtree_verify.native import library
from kdtree_verify.replay import file, origin
from kdtree_verify.replay.capture import Capture
from kdtree_verify.replay.judge import Verdict, distance, relative

POOLS = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    """`replayed(capture, of=ORIGIN)`: what `kdtree replay --json` says of it on the CPU."""

    def replay(capture: Capture, of: origin.Origin = ORIGIN) -> dict[str, Any]:
        path = tmp_path / "capture.safetensors"
        file.write(path, capture, of)
        code = cli.main(["replay", str(path), "--device", "cpu", "--json"])
        document = json.loads(capsys.readouterr().out, parse_constant=lambda constant: pytest.fail(constant))
        assert document["exit_code"] == code == Verdict[document["verdict"].upper()]
        path.unlink()
        return document

    return replay


def host_origin() -> origin.Origin:
    """Of the very library that repeats here."""
    description = library.load(from_environment().library_dir, Device.CPU).description
    return origin.now("validate", "dp0-pp0-tp0", "m", torch.device("cpu"), description)


def spoiled(answer: torch.Tensor) -> torch.Tensor:
    """The answer with one row of one head half as large again."""
    answer = answer.clone()
    answer[3, 1] *= 1.5
    return answer


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["tree", "chain"])
@pytest.mark.parametrize("shape", [(5, 3, 40), (5, 3, 0), (4, 2, 1)], ids=str)
def test_who_was_wrong(replayed: Replay, pool: torch.dtype, causal: bool, shape: tuple[int, int, int]) -> None:
    tokens, heads, prefix = shape
    right = made(tokens, heads, prefix, pool=pool, causal=causal)
    found = replayed(right)
    assert found["verdict"] == "right"
    assert found["verdict_line"].startswith("both within what their arithmetic allows")

    found = replayed(replace(right, ours=spoiled(right.ours)))
    assert found["verdict"] == "ours_wrong"
    assert found["verdict_line"].startswith("ours was wrong: relative L2 ")
    assert found["verdict_line"].endswith(
        "another library than the recorded one repeated it, and is right; stock was right"
    )
    ours = found["recorded"]["ours"]
    assert (ours["token"], ours["head"], ours["nonfinite"]) == (3, 1, 0)
    assert ours["row_rel_l2"] == pytest.approx(0.5, rel=0.01)

    found = replayed(replace(right, stock=right.stock * 2))
    assert found["verdict"] == "stock_wrong"
    assert found["verdict_line"].startswith("stock was wrong: relative L2 ")
    assert found["recorded"]["stock"]["rel_l2"] == pytest.approx(1, rel=0.01)

    found = replayed(replace(right, stock=right.stock * 2, ours=spoiled(right.ours)))
    assert found["verdict"] == "both_wrong"
    assert found["verdict_line"].endswith("stock was wrong, too")


def test_one_token(replayed: Replay) -> None:
    for prefix in (0, 9):
        right = made(1, 1, prefix)
        assert replayed(right)["verdict"] == "right"
        assert replayed(replace(right, ours=-right.ours))["verdict"] == "ours_wrong"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_wrong(replayed: Replay, value: float) -> None:
    right = made()
    wrong = right.ours.clone()
    wrong[4, 2, 7:10] = value
    found = replayed(replace(right, ours=wrong))
    assert found["verdict"] == "ours_wrong"
    assert "3 NaN or Inf" in found["verdict_line"]
    ours = found["recorded"]["ours"]
    assert (ours["nonfinite"], ours["token"], ours["head"], ours["row_rel_l2"]) == (3, 4, 2, None)
    assert replayed(replace(right, stock=wrong))["verdict"] == "stock_wrong"
    assert replayed(replace(right, stock=wrong, ours=wrong))["verdict"] == "both_wrong"


def test_what_the_same_library_does_not_repeat(replayed: Replay) -> None:
    right = made()
    assert replayed(right, host_origin())["same_library"]
    found = replayed(replace(right, ours=spoiled(right.ours)), host_origin())
    assert found["verdict"] == "unrepeated"
    assert found["verdict_line"].startswith("cannot be repeated: recorded ours was wrong")
    (again,) = found["repeated"]["ours"]
    assert again["differing"] == 512
    found = replayed(replace(right, stock=-right.stock, ours=spoiled(right.ours)), host_origin())
    assert found["verdict_line"].endswith("stock was wrong, too")
    # Another file is another library, also where its sources are the same: it may be damaged.
    other = replace(host_origin(), library=host_origin().library | {"sha256": "0" * 64})
    assert replayed(replace(right, ours=spoiled(right.ours)), other)["verdict"] == "ours_wrong"


def test_a_library_that_is_wrong_again(replayed: Replay, defective_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = made(tokens=8, heads=4)
    monkeypatch.setenv("KDTREE_LIBRARY_DIR", str(defective_dir))
    assert replayed(right)["verdict"] == "right"
    monkeypatch.setenv("KDTREE_DEFECT", "heads-swapped")
    swapped = right.ours[:, [1, 0, 2, 3]].contiguous()
    found = replayed(replace(right, ours=swapped), host_origin())
    assert found["verdict"] == "ours_wrong"
    assert "repeated, it is wrong again" in found["verdict_line"]
    assert found["repeated"]["ours"][0]["differing"] == 0
    found = replayed(right)
    assert found["verdict"] == "ours_wrong"
    assert found["verdict_line"].startswith("ours is wrong here (float64): ")
    assert "recorded ours was right" in found["verdict_line"]


def test_a_launch_that_is_refused(
    tmp_path: Path, defective_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write(tmp_path / "c", made(), ORIGIN)
    monkeypatch.setenv("KDTREE_LIBRARY_DIR", str(defective_dir))
    monkeypatch.setenv("KDTREE_DEFECT", "launch-refused")
    assert cli.main(["replay", str(tmp_path / "c"), "--device", "cpu"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kdtree: kdtree_verify was refused: status 10, ")


def test_fp8_is_what_lies_between_them(replayed: Replay) -> None:
    # As far from stock as its bound allows no more, and nobody is wrong: stock rounded to fp8.
    right = made(8, 4, 500, pool=torch.float8_e5m2)
    noise = torch.randn(right.stock.shape, generator=torch.Generator().manual_seed(1))
    stock = (right.stock + 0.04 * right.stock.float().std() * noise).bfloat16()
    found = replayed(replace(right, stock=stock, bound=0.02))
    assert found["verdict"] == "right"
    assert found["verdict_line"].endswith(": stock's roundings to fp8 are what lies between them")
    assert found["call"]["request_rel_l2"] > 0.02
    # With a bf16 pool the same distance is an error.
    exact = made(8, 4, 500)
    stock = (exact.stock + 0.04 * exact.stock.float().std() * noise).bfloat16()
    assert replayed(replace(exact, stock=stock))["verdict"] == "stock_wrong"


def test_a_request_that_was_not_the_wrong_one(replayed: Replay) -> None:
    assert "in another of its 3 requests" in replayed(made(batch=3))["verdict_line"]
    assert "in another" not in replayed(made(batch=1, request=0))["verdict_line"]


@pytest.mark.parametrize(
    "arguments", [["--device", "cuda:7"], ["--device", "all"], ["--device", "gpu"], ["--what"], []]
)
def test_arguments(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write(tmp_path / "c", made(), ORIGIN)
    given = ["replay", str(tmp_path / "c"), *arguments] if arguments else ["replay"]
    assert cli.main(given) == (69 if arguments[-1:] == ["cuda:7"] else 64)
    (line,) = capsys.readouterr().err.splitlines()
    assert ". Fix: " in line


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = made()
    file.write(tmp_path / "c", replace(right, ours=spoiled(right.ours)), ORIGIN)
    assert cli.main(["replay", str(tmp_path / "c"), "--device", "cpu"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ours, recorded") and line.endswith("WRONG") for line in told)
    assert told[-1].startswith("verdict: ours was wrong: ")
    assert all(len(line) < 200 for line in told[:-1])


@pytest.mark.parametrize("lacking", ["the interpreter", "SGLang", "the contract"])
def test_stock_that_cannot_be_repeated(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its recorded answer stands, and the output says why."""
    if lacking == "the interpreter":
        monkeypatch.delenv("TRITON_INTERPRET")
    elif lacking == "SGLang":
        monkeypatch.setitem(sys.modules, "sglang.srt.plugins", None)
    else:
        monkeypatch.setattr("kdtree_verify.contract.EXTEND_ATTENTION_FWD", "q, k, v")
    file.write(tmp_path / "c", made(stock=-made().stock), ORIGIN)
    assert cli.main(["replay", str(tmp_path / "c"), "--device", "cpu"]) == 2
    (why,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("stock was not repeated: "))
    expected = {"the interpreter": "TRITON_INTERPRET=1", "SGLang": "sglang.srt.plugins", "the contract": "signature"}
    assert expected[lacking] in why


def test_distances() -> None:
    exact = torch.ones(2, 2, 512, dtype=torch.float64)
    exact[0, 0] = 0
    answer = exact.bfloat16()
    assert distance(answer, exact).within(0.0)
    answer[1, 0, 5] += 0.5
    found = distance(answer, exact)
    assert (found.token, found.head, found.max_abs, found.nonfinite) == (1, 0, 0.5, 0)
    assert found.rel_l2 == pytest.approx(0.5 / math.sqrt(3 * 512))
    answer[0, 0, 0] = 1e-3  # something where zeros are right
    assert (distance(answer, exact).head, distance(answer, exact).row_rel_l2) == (0, math.inf)
    # A value that the dtype cannot hold is rightly infinite.
    exact[1, 1, 1], answer[1, 1, 1] = 1e39, math.inf
    assert distance(answer, exact).nonfinite == 0
    assert relative(answer, exact) == math.inf
    assert relative(torch.zeros(2, 3), torch.zeros(2, 3).double()) == 0.0


@pytest.mark.slow
def test_stock_under_tritons_interpreter(tmp_path: Path) -> None:
    """Asked for by TRITON_INTERPRET=1: SGLang's own kernel repeats the call, too."""
    right = made(8, 4, 70, pool=torch.float8_e5m2)
    file.write(tmp_path / "c", right, ORIGIN)
    command = [sys.executable, "-W", "ignore", "-m", "kdtree_verify.cli", "replay", str(tmp_path / "c"), "--json"]
    done = subprocess.run([*command, "--device", "cpu"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    stock = document["repeated"]["stock"]
    assert 0.01 < stock["rel_l2"] < document["limits"]["stock"]
