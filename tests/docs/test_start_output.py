"""The start that the quick start shows: what the launcher's thread tells of such ranks."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

import documents
from kdtree_verify.config import Mode
from kdtree_verify.doctor.arguments import Plan
from kdtree_verify.reporting import health, state, status
from kdtree_verify.reporting.state import Identity, State, Verdict
from kdtree_verify.startup.phases import Phase
from kdtree_verify.startup.watch import Watch
from kdtree_verify.startup.weights import Loading

(SHOWN,) = (
    block.text.replace("\nKV cache", " KV cache")
    for block in documents.blocks(documents.OPERATING / "quick-start.md")
    if block.value("name") == "start"
)
LINES = re.findall(r"^kdtree: (\[\d+:\d\d\] .*)$", SHOWN, re.M)


def seconds(time_of_line: str) -> int:
    minutes, rest = time_of_line.split(":")
    return 60 * int(minutes) + int(rest)


def test_its_phases_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = list(Phase)
    shown = [(line, phase) for line in LINES for phase in phases if re.search(rf"tp0: {phase}\b", line)]
    assert [phase for _, phase in shown] == sorted((phase for _, phase in shown), key=phases.index)
    # When each began: the first by its line, the others by what the one before took.
    began = [float(seconds(shown[0][0][1:5])) + 0.55]
    for line, _ in shown[1:]:
        (took,) = re.findall(r" took ([\d.]+)s\)$", line)
        began.append(began[-1] + float(took))

    at = time.time() - 68
    entered = [{"name": str(phase), "since": at + when} for (_, phase), when in zip(shown, began, strict=True)]
    state.write(tmp_path / state.SERVER_FILE, state.server_document(Mode.VALIDATE, [], 2, None))
    for tp in (0, 1):
        identity = Identity(tp, 0, 0, os.getpid())
        document = state.rank_document(Mode.VALIDATE, identity, Verdict(State.ARMED))
        document |= {"phase": "ready", "phase_since": entered[-1]["since"], "phases": entered}
        state.write(state.rank_path(tmp_path, identity), document)
    monkeypatch.setattr(Loading, "size", lambda _: "14.8 MB")
    monkeypatch.setattr(health, "own_endpoint_problems", lambda snapshot, timeout: [])
    told: list[str] = []
    assert Watch(tmp_path, Plan(), {}, began=at, tell=told.append).look()
    assert [line for line in LINES if "no rank" not in line] == told


def test_what_lasts_is_told_so(tmp_path: Path) -> None:
    state.write(tmp_path / state.SERVER_FILE, state.server_document(Mode.VALIDATE, [], 2, None))
    told: list[str] = []
    watch = Watch(tmp_path, Plan(), {}, began=time.time() - 30, every=0.0, tell=told.append)
    assert not watch.look()
    assert status.read(tmp_path).server is not None
    assert told == [line for line in LINES if "no rank" in line]
