"""The proof's runner (proof/), with servers on the CPU: what it keeps, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from demo import model as maker
from demo.verdict import differences
from proof import answers, dialogue, exact, speed
from proof.answers import Job, Servers
from proof.dialogue import Request
from proof.results import Identity, Results
from proof.server import Launch, started
from proof.speed import Cell
from proof.starts import EXACT, Start
from serving import NGRAM
from serving import Launch as CpuLaunch

pytestmark = [pytest.mark.server, pytest.mark.slow]

START = Start(maker.DEMO.heads, 12, "NGRAM", 10)  # as NGRAM's own defaults have it
ALONE = Request("alone-16", (16,), 12)
ASKED = (ALONE, Request("alone-16-and-on", (20,), 8, ALONE), Request("batch-2", (10, 20), 8))
IDENTITY = Identity("kernel", "patch", "questions", "0.0", "no card")


def servers(folder: Path, **environment: str) -> tuple[Servers, Results]:
    def on_cpu(job: Job, model: Path, own: Path, gpus: tuple[int, ...], context: int) -> Launch:
        assert gpus == (0,)
        assert context >= dialogue.longest_sequence(ASKED)
        return CpuLaunch(model, own, job.verify, NGRAM, environment=environment)

    results = Results(folder / "answers", IDENTITY)
    return Servers(results, folder / "models", ASKED, 1, maker.DEMO, on_cpu), results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of the configuration's servers have answered."""
    folder = tmp_path_factory.mktemp("proof")
    runner, _ = servers(folder)
    runner.run(answers.jobs([START]), 2, time.monotonic() + 600)
    return folder


def test_servers_answer_and_are_found_right(folder: Path) -> None:
    _, results = servers(folder)
    assert answers.verdicts(results, [START]) == {START.name: []}
    for mode in START.modes:
        run = results.run(START, mode)
        assert run is not None
        prompts = ["alone-16/0", "alone-16-and-on/0", "batch-2/0", "batch-2/1"]
        assert [answer.prompt for answer in run.answers] == prompts
        assert [len(answer.tokens) for answer in run.answers] == [12, 8, 8, 8]
        assert all(answer.verify_calls > 0 for answer in run.answers)
        assert run.answers[1].cached >= 15, "the prefix cache holds the request that this one follows"


def test_the_model_is_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    runner, _ = servers(tmp_path)
    written = json.loads((runner.model(START) / "config.json").read_text())
    assert written["hidden_size"] == maker.DEMO.hidden
    assert written["num_hidden_layers"] == maker.DEMO.layers


def test_what_is_done_is_not_done_again(folder: Path) -> None:
    runner, results = servers(folder, KDTREE_VERIFY="nonsense")  # no server would come up
    before = results.path(START, "on").stat().st_mtime_ns
    runner.run(answers.jobs([START]), 1, time.monotonic() + 600)
    assert results.path(START, "on").stat().st_mtime_ns == before


def test_a_server_that_attends_in_float32_answers_as_stock_does(folder: Path, tmp_path: Path) -> None:
    _, results = servers(folder)
    off = results.run(START, "off")
    assert off is not None
    model = next((folder / "models").iterdir())
    launch = CpuLaunch(model, tmp_path / "server", "off", NGRAM, environment=exact.environment(tmp_path))
    with started(launch) as server:
        server.wait_ready()
        assert all(d.near_tie for d in differences(off.answers, dialogue.hold(server.url, ASKED)))
        assert exact.ANSWERED in server.log()


def test_a_real_stream_has_a_piece_for_each_step_alone_and_fewer_in_a_batch(folder: Path, tmp_path: Path) -> None:
    model = next((folder / "models").iterdir())
    with started(CpuLaunch(model, tmp_path / "server", "off", NGRAM)) as server:
        server.wait_ready()
        alone = [meta for _, meta in speed.pieces(server.url, Cell(30, 1).request(16))]
        tokens = 3 * speed.BATCH_INTERVAL
        batch = [index for index, _ in speed.pieces(server.url, Cell(30, 2).request(tokens))]
        timed = speed.time_cell(server.url, Cell(30, 2), tokens)
    made = [meta["completion_tokens"] for meta in alone]
    assert len(set(made)) == 1 + alone[-1]["spec_verify_ct"]  # prefill makes the first token
    assert made[-1] == 16
    assert set(batch) == {0, 1}
    assert len(batch) <= 2 * (1 + 3 + 1)  # the first token, an interval each, the end
    assert 1 <= timed.accept_length <= START.drafts
    assert timed.step_ms > 0


def test_stock_is_not_taken_for_float32(folder: Path, tmp_path: Path) -> None:
    runner, results = servers(tmp_path)  # whose servers have no plugin
    (tmp_path / "models").symlink_to(folder / "models")
    runner.serve(Job(START, EXACT))
    document = results.document(START, EXACT)
    assert document is not None
    assert document["error"].startswith("stock answered")
    assert not results.has(START, EXACT)


def test_answers_of_another_kernel_do_not_count(folder: Path) -> None:
    results = Results(folder / "answers", replace(IDENTITY, kernel="another"))
    assert answers.verdicts(results, [START]) == {START.name: [f"{mode}: not run yet" for mode in START.modes]}


def test_a_server_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    runner, results = servers(tmp_path, KDTREE_LIBRARY_DIR=str(tmp_path / "none"))
    runner.run([Job(START, "on")], 1, time.monotonic() + 600)
    assert not results.has(START, "on")
    (found,) = answers.verdicts(results, [START]).values()
    assert found[-1].startswith("on: status 70")
    document = results.document(START, "on")
    assert document is not None
    assert "Fix:" in document["log"]


def test_none_begins_after_the_deadline(tmp_path: Path) -> None:
    runner, results = servers(tmp_path)
    runner.run(answers.jobs([START]), 2, time.monotonic() - 1)
    assert not results.folder.exists()
