"""Faults of a real SGLang server on a GPU: a wrong kernel, a rank that cannot arm, requests and processes that go.

The answers of servers without a fault are ci/gpu-proof's.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from demo import model as maker
from demo.verdict import NEAR_TIE, differences
from kdtree_verify.config import PRODUCT_CAPABILITY, from_environment
from kdtree_verify.selftest import golden
from kdtree_verify.verdict import command
from kdtree_verify.verdict.judge import Status, Verdict
from proof import dialogue, verdict
from proof.dialogue import Answer, Request
from proof.launches import GpuLaunch
from proof.server import Ended, Server, started
from proof.starts import Start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed (docs/proof.md)"),
]

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "libkdtree_verify_cuda.so"
START = Start(8, 12, "NGRAM", 4)
SIZE = maker.Size(hidden=512, context=8192, sharpness=4.0)
ASKED = (Request("alone-100", (100,), 48), Request("alone-4000", (4000,), 48), Request("batch-3", (60, 250, 900), 32))
WORKSPACE, KERNEL_LIBRARY = 68, 70
SOON = 30.0  # seconds
WRONG = {"KDTREE_TEST_SOUND_SCALE": str(golden.SM_SCALE)}
"""A kernel that is wrong for every softmax scale but the self-test's: the model has another."""


@pytest.fixture(scope="module")
def new_launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GpuLaunch]:
    """`new_launch(mode, **environment)` with a folder of its own."""
    model = tmp_path_factory.mktemp("model")
    maker.write(model, SIZE)

    def launch(mode: str, **environment: str) -> GpuLaunch:
        folder = tmp_path_factory.mktemp(mode)
        return GpuLaunch(START, mode, model, folder, context=SIZE.context, environment=environment)

    return launch


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library folder whose CUDA library has the faults that its environment asks for."""
    folder = tmp_path_factory.mktemp("faulty")
    real = Path(os.environ["KDTREE_LIBRARY_DIR"]) / LIBRARY
    source = ROOT / "tests" / "server" / "faulty_library.c"
    subprocess.run(
        [
            *("gcc", "-std=c11", "-O1", "-shared", "-fPIC", f'-DREAL="{real.resolve()}"'),
            *("-I", ROOT / "kernel" / "include", source, "-o", folder / LIBRARY, "-ldl"),
        ],
        check=True,
    )
    return str(folder)


@pytest.fixture(scope="module")
def off(new_launch: Callable[..., GpuLaunch]) -> list[Answer]:
    with started(new_launch("off")) as server:
        server.wait_ready()
        return dialogue.hold(server.url, ASKED)


def refusal(launch: GpuLaunch) -> tuple[int, str]:
    """How a server that must not come up ends: its status and what it printed."""
    with started(launch) as server:
        with pytest.raises(Ended):
            server.wait_ready()
        return server.wait_end(), server.log()


def test_validate_serves_stocks_answers_beside_a_wrong_kernel_and_says_so(
    new_launch: Callable[..., GpuLaunch], faulty: str, off: list[Answer]
) -> None:
    launch = new_launch("validate", KDTREE_LIBRARY_DIR=faulty, **WRONG)
    with started(launch) as server:
        server.wait_ready()
        first = dialogue.hold(server.url, ASKED[:1])
        deadline = time.monotonic() + SOON
        while "left its bound" not in server.log():
            assert time.monotonic() < deadline, server.log()[-3000:]
            time.sleep(0.2)
        answers = [*first, *dialogue.hold(server.url, ASKED[1:])]
        ranks = server.settled()
    assert [found for found in differences(off, answers) if found.margin > NEAR_TIE] == []
    assert differences(off[:2], answers[:2]) == []
    assert all(layer["exceeded_calls"] > 0 for rank in ranks.values() for layer in rank["layers"])
    assert any("beyond the bound" in line for line in verdict.counted(START, "validate", verdict.Run(answers, ranks)))


def test_the_answers_of_on_tell_a_wrong_kernel(
    new_launch: Callable[..., GpuLaunch], faulty: str, off: list[Answer]
) -> None:
    launch = new_launch("on", KDTREE_LIBRARY_DIR=faulty, **WRONG)
    with started(launch) as server:
        server.wait_ready()
        answers = dialogue.hold(server.url, ASKED)
    found = differences(off, answers)
    assert len(found) == len(off)
    assert sum(parting.margin > NEAR_TIE for parting in found) > len(off) // 2


def test_a_rank_without_its_library_ends_the_server(new_launch: Callable[..., GpuLaunch], tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(b"\x7fELF, but not for long")
    status, log = refusal(new_launch("on", KDTREE_LIBRARY_DIR=str(tmp_path)))
    assert status == KERNEL_LIBRARY
    assert str(tmp_path) in log


def test_no_memory_for_the_workspace_ends_the_server(new_launch: Callable[..., GpuLaunch], faulty: str) -> None:
    environment = {"KDTREE_LIBRARY_DIR": faulty, "KDTREE_TEST_WORKSPACE": str(1 << 45)}
    status, log = refusal(new_launch("on", **environment))
    assert status == WORKSPACE
    (line,) = {line for line in log.splitlines() if line.startswith("kdtree: ") and "Fix: " in line}
    assert "workspace" in line


def test_requests_that_are_given_up_leave_the_others_alone(
    new_launch: Callable[..., GpuLaunch], off: list[Answer]
) -> None:
    with started(new_launch("on")) as server:
        server.wait_ready()
        for length in (100, 900, 4000):
            give_up(server, Request(f"given-up-{length}", (length,), 4000))
        answers = dialogue.hold(server.url, ASKED)
        ranks = server.settled()
    assert [found for found in differences(off, answers) if found.margin > NEAR_TIE] == []
    assert {rank["state"] for rank in ranks.values()} == {"serving"}


@pytest.mark.parametrize("victim", ["server", "rank"])
def test_a_server_whose_process_is_killed_ends_and_can_be_started_again(
    new_launch: Callable[..., GpuLaunch], off: list[Answer], victim: str
) -> None:
    launch = new_launch("on")
    with started(launch) as server:
        server.wait_ready()
        (rank,) = server.settled().values()
        give_up(server, Request("mid-verify", (900,), 4000))
        os.kill(server.process.pid if victim == "server" else rank["pid"], signal.SIGKILL)
        assert server.wait_end() != 0
        deadline = time.monotonic() + SOON
        while Path(f"/proc/{rank['pid']}/exe").exists():
            assert time.monotonic() < deadline, "the rank is still there"
            time.sleep(0.2)
    with started(replace(launch)) as server:
        server.wait_ready()
        answers = dialogue.hold(server.url, ASKED[:1])
    assert [found for found in differences(off[:1], answers) if found.margin > NEAR_TIE] == []


def test_the_report_tells_both_kernels_times_and_judges_the_card(new_launch: Callable[..., GpuLaunch]) -> None:
    """`kdtree report` of a real server: what no processor can show."""
    launch = new_launch("validate")
    with started(launch) as server:
        server.wait_ready()
        dialogue.hold(server.url, ASKED)
        (rank,) = server.settled().values()
        calls = sum(layer["compare_calls"] for layer in rank["layers"])
        deadline = time.monotonic() + SOON
        while (report := command.make(launch.folder / "evidence", from_environment())).evidence.compared < calls:
            assert time.monotonic() < deadline, "what was measured is not on the disk"
            time.sleep(1)
    setup, found = report.evidence.setup, {criterion.name: criterion for criterion in report.criteria}
    assert (setup.library_kind, setup.device) == ("cuda", rank["device"]["name"])
    assert found["card"].status == (Status.MET if setup.compute_capability == PRODUCT_CAPABILITY else Status.MISSING)
    assert found["float64"].status is found["explained"].status is found["bound"].status is Status.MET
    assert report.verdict is Verdict.NOT_YET, "a minute is thin evidence"
    assert {each.cell.prefix_from for each in report.times} >= {0, 2048}
    for each in report.times:
        assert 0 < each.kernel_us < each.stock_us < 1e6
        assert each.saved_ms == pytest.approx((each.stock_us - each.kernel_us) * len(rank["layers"]) / 1e3)


def give_up(server: Server, request: Request) -> None:
    """Asks for many tokens, waits for the first of them, and hangs up."""
    body = {
        "input_ids": request.prompts()[0],
        "sampling_params": {"temperature": 0.0, "max_new_tokens": request.tokens, "ignore_eos": True},
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SOON)
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        for _ in range(3):
            piece = response.readline()
            assert piece.startswith(b"data: {"), piece
            assert b'"error"' not in piece, piece
            response.readline()
    connection.close()
