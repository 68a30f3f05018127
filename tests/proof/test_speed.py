"""What is timed of a batch: the time in which all of it is decoded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from proof import __main__ as command
from proof import speed
from proof.launches import GpuLaunch
from proof.results import Identity
from proof.server import Ended
from proof.speed import Cell, Progress, Timed

IDENTITY = Identity("kernel", "patch", "questions", "0.0", "no card")


def answered(begin: float, interval: float, pieces: int, tokens: int, steps: int) -> Progress:
    """An answer that comes in so many pieces of so many tokens."""
    progress = Progress()
    for i in range(pieces):
        progress.add(begin + i * interval, (i + 1) * tokens, steps)
    return progress


def test_one_request() -> None:
    # 11 pieces of 2 tokens, 10 ms apart: 10 of them after the first; 11 steps.
    found = speed.timed([answered(1.0, 0.01, 11, 2, 11)])
    assert found.tokens_a_second == pytest.approx(200)
    assert found.accept_length == 2
    assert found.step_ms == pytest.approx(10)


def test_only_while_the_whole_batch_is_decoded() -> None:
    # The second begins 50 ms later and both go on until the first ends: 60 ms, 6 pieces of 2 tokens each. A piece is
    # two steps: SGLang counts 84 of a token each.
    both = [answered(0.0, 0.01, 12, 2, 24), answered(0.05, 0.01, 30, 2, 60)]
    found = speed.timed(both)
    assert found.tokens_a_second == pytest.approx(2 * 12 / 0.06)
    assert found.accept_length == 1
    assert found.step_ms == pytest.approx(5)


def test_a_hiccup_is_no_step() -> None:
    late = answered(0.0, 0.01, 6, 2, 6)
    for at, tokens in answered(1.0, 0.01, 6, 2, 6).seen:
        late.add(at, 12 + tokens, 12)
    found = speed.timed([late])
    assert found.step_ms == pytest.approx(10)
    assert found.tokens_a_second == pytest.approx(22 / 1.05)


def test_a_batch_that_never_decodes_together_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="more tokens"):
        speed.timed([answered(0.0, 0.01, 3, 1, 3), answered(1.0, 0.01, 3, 1, 3)])
    with pytest.raises(ValueError, match="not answered"):
        speed.timed([answered(0.0, 0.01, 3, 1, 3), Progress()])
    with pytest.raises(ValueError, match="no verify steps"):
        speed.timed([answered(0.0, 0.01, 3, 1, 0)])


def test_the_full_model_is_estimated_by_its_layers() -> None:
    assert speed.full_model_ms(5.0, 7.0) == pytest.approx(5.0 + 25.0)


class Server:
    """In place of a real one: `url` is its name."""

    def __init__(self, launch: GpuLaunch, dead: str | None) -> None:
        self.url, self.dead = launch.folder.name.removeprefix("server-"), dead

    def wait_ready(self) -> None:
        if self.url == self.dead:
            raise Ended("status 70\nmore of its log")


class Servers:
    """What speed.run does to servers that answer at once, but for one that does not come up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dead: str | None = None) -> None:
        self.timed: list[tuple[str, str]] = []
        self.up = 0

        @contextmanager
        def started(launch: GpuLaunch) -> Iterator[Server]:
            self.up += 1
            yield Server(launch, dead)
            self.up -= 1

        def time_cell(url: str, cell: Cell) -> Timed:
            self.timed.append((url, cell.name))
            return Timed(300.0 if url.startswith("on") else 100.0, 2.0 if url.startswith("on") else 6.0, 1.5)

        monkeypatch.setattr(speed, "started", started)
        monkeypatch.setattr(speed, "time_cell", time_cell)
        monkeypatch.setattr(speed.maker, "write_once", lambda folder, size: None)


def test_every_cell_is_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = Servers(monkeypatch)
    assert command.timed(tmp_path, IDENTITY, time.monotonic() + 60) == 0
    assert len(servers.timed) == len(set(servers.timed)) == 3 * len(speed.CELLS) + 2 * len(speed.CONTEXTS)
    assert servers.up == 0
    assert "| 32K x 1 | 100 | 300 | 3.00 | 1.00 | 6.00 | 2.00 | 67% | 3.00 | 3.00 |" in capsys.readouterr().out
    for name, words in (
        ("throughput", ("on / off", "validate / off", "32K", "no card")),
        ("step", ("off x 16", "64K")),
    ):
        text = " ".join(ElementTree.parse(tmp_path / f"speed-{name}.svg").getroot().itertext())
        assert all(word in text for word in words), text
    before = list(servers.timed)
    assert command.timed(tmp_path, IDENTITY, time.monotonic() + 60) == 0
    assert servers.timed == before


def test_what_was_brought_here_is_told_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Servers(monkeypatch, dead="validate-2")
    assert command.timed(tmp_path, IDENTITY, time.monotonic() + 60) == 1
    told = capsys.readouterr().out
    (tmp_path / "speed-step.svg").unlink()
    assert command.main(["report", "--results", str(tmp_path)]) == 1
    assert capsys.readouterr().out == told
    assert "on x 1" in (tmp_path / "speed-step.svg").read_text()
    assert "validate" not in (tmp_path / "speed-throughput.svg").read_text()


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch)
    assert command.timed(tmp_path, IDENTITY, time.monotonic() + 60) == 0
    document: dict[str, Any] = json.loads((tmp_path / "speed.json").read_text())
    del document["times"]["on-2"]["64K x 16"]
    (tmp_path / "speed.json").write_text(json.dumps(document))
    servers.timed.clear()
    assert command.timed(tmp_path, IDENTITY, -math.inf) == 1
    assert servers.timed == []
    assert command.timed(tmp_path, IDENTITY, time.monotonic() + 60) == 0
    assert servers.timed == [("on-2", "64K x 16")]


def test_a_server_that_fails_is_told_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = Servers(monkeypatch, dead="on-2")
    assert command.timed(tmp_path, IDENTITY, time.monotonic() + 60) == 1
    told = capsys.readouterr()
    assert f"on-2: status 70; its log is in {tmp_path}\n" in told.err
    assert told.out.strip().splitlines()[-1].startswith(f"{len(speed.CELLS)} cells left")
    assert {url for url, _ in servers.timed} == {"off-2", "validate-2", "off-4", "on-4"}
